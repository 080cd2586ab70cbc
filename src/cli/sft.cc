// augur sft: supervised fine-tuning.
#include "train/run/sft.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>
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
  fmt::print("trained {} step{}\n{}\n", outcome.steps, outcome.steps == 1 ? "" : "s",
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
      "A run goes on by itself from where its directory stands (run.resume). Configuration keys:\n\n" +
      HelpText(FieldsOf(defaults)));
  command->callback([options] { Sft(*options); });
}

}  // namespace augur
