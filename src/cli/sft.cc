// augur sft: supervised fine-tuning.
#include "train/sft.h"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "config/read.h"

namespace augur {
namespace {

struct Options {
  std::string config;
  std::vector<std::string> overrides;
};

void Sft(const Options& options) {
  const SftConfig config = ReadSftConfig(options.config, options.overrides);
  SftHooks hooks;
  hooks.step = [&](int64_t step, const std::map<std::string, double>& metrics) {
    if (step % 10 == 0 || step == config.sft.steps) {
      fmt::print("step {}/{} loss {:.4f} grad_norm {:.3f} {:.0f} tokens/s\n", step, config.sft.steps,
                 metrics.at("train/loss"), metrics.at("train/grad_norm"), metrics.at("perf/throughput"));
    }
  };
  RunSft(config, hooks);
}

}  // namespace

void AddSftCommand(CLI::App& app) {
  CLI::App* command = app.add_subcommand("sft", "Supervised fine-tuning: prompts in, answers out");
  const auto options = std::make_shared<Options>();
  command->add_option("CONFIG", options->config, "A YAML file")->required();
  command->add_option("CHANGES", options->overrides, "key=value pairs that change it");
  command->callback([options] { Sft(*options); });
}

}  // namespace augur
