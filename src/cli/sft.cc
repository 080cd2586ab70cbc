// augur sft: supervised fine-tuning.
#include "train/run/sft.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/stop_signals.h"
#include "cli/commands.h"
#include "config/read.h"
#include "config/write.h"
#include "ops/parallel/ranks.h"
#include "train/run/lora.h"

namespace augur {
namespace {

struct SftFlags {
  std::string config;
  std::vector<std::string> overrides;
};

constexpr std::string_view kFirstSftKeys[] = {"run.dir",         "model.path", "lora.rank", "data.train",
                                              "data.answer_key", "sft.batch",  "sft.lr",    "sft.steps"};

void Sft(const SftFlags& options) {
  const StopSignals signals;  // main.cc has held back those that came before
  SftConfig config;
  Ranks::World().Together([&] { config = ReadSftConfig(options.config, options.overrides); });
  const StopOnLostReader lost_reader;  // whose end does not become this command's at its last words
  RunResult outcome;
  try {
    outcome = RunSft(config);
  } catch (const Stopped&) {
    if (!Ranks::World().alone()) throw;
    outcome = StoppedBeforeItBegan();
  }
  if (!outcome.stopped_by.empty()) {
    fmt::print("{}\n", StopMessage(outcome, config.sft.steps));
    return;
  }
  fmt::print("trained {} step{}{}\n{}\n", outcome.steps, outcome.steps == 1 ? "" : "s", NothingToDo(outcome),
             DescribeResult(config.run.dir));
}

}  // namespace

void AddSftCommand(CLI::App& app) {
  CLI::App* command = app.add_subcommand("sft", "Supervised fine-tuning: prompts in, answers out");
  const auto options = std::make_shared<SftFlags>();
  command->add_option("CONFIG", options->config, "A YAML file, e.g. recipes/tiny-sft.yaml")->required();
  command->add_option("CHANGES", options->overrides, "key=value pairs that change it");
  SftConfig defaults;
  command->footer(
      "The same command again continues a run from its newest checkpoint (run.resume). The first keys to "
      "know; "
      "docs/configuration.md\nlists all (`augur config --markdown`):\n\n" +
      HelpText(FieldsOf(defaults), kFirstSftKeys));
  command->callback([options] { Sft(*options); });
}

}  // namespace augur
