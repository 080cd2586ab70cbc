// augur train: reinforcement learning.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "base/stop_signals.h"
#include "base/tell.h"
#include "cli/commands.h"
#include "cli/program.h"
#include "config/read.h"
#include "config/write.h"
#include "metrics/wandb.h"
#include "ops/parallel/ranks.h"
#include "report/report.h"
#include "train/checkpoint/checkpoint.h"
#include "train/run/lora.h"
#include "train/run/trainer.h"

namespace augur {
namespace {

struct TrainFlags {
  std::string config;
  std::vector<std::string> overrides;
  bool print_config = false;
  TrainOptions train;
};

constexpr std::string_view kFirstTrainKeys[] = {
    "run.dir",       "model.path",         "data.train",  "eval.files", "reward.python",
    "rollout.group", "rollout.max_tokens", "mask.preset", "train.lr",   "train.steps"};

// A long run's page takes seconds. Between two of them lies at least this many times what one takes.
constexpr double kPageRarity = 30;

void Train(const TrainFlags& options) {
  const StopSignals signals;  // main.cc has held back those that came before
  const Ranks ranks = Ranks::World();
  RlConfig config;
  ranks.Together([&] { config = ReadRlConfig(options.config, options.overrides); });
  if (options.print_config) {
    fmt::print("{}", ToYaml(FieldsOf(config)));
    return;
  }
  const StopOnLostReader lost_reader;  // whose end does not become this command's at its last words
  const std::filesystem::path run = config.run.dir, page = run / "report.html";
  TrainOptions train = options.train;
  std::optional<WandbWriter> wandb;
  train.begins = [&](const std::string& yaml, bool anew) {
    if (wandb) wandb->Begin(yaml, anew);
  };
  train.logged = [&](int64_t step, const Metrics& metrics) {
    if (wandb) wandb->Write(step, metrics);
    if (const auto tell = Hooks().step) tell(step, config.train.steps, Json(metrics).dump().c_str());
  };
  // A page that cannot be written costs no training. It is told of when that is the only fault: a disk that
  // is full soon has another.
  std::string page_fault;
  const auto tell_page_fault = [&] {
    if (!page_fault.empty()) Tell("augur: warning: the report was not written: {}\n", page_fault);
  };
  Clock::time_point page_tried;
  double page_seconds = 0;  // that the last one took
  const auto write_page = [&] {
    const auto start = Clock::now();
    try {
      WriteReport({&run, 1}, page);
      page_fault.clear();
    } catch (const Stopped&) {
      throw;
    } catch (const std::exception& fault) {
      page_fault = fault.what();
    }
    page_tried = Clock::now();
    page_seconds = SecondsSince(start);
  };
  train.evaluated = [&] {
    if (SecondsSince(page_tried) > kPageRarity * page_seconds) write_page();
  };
  TrainOutcome outcome;
  try {
    ranks.OnFirst([&] {
      if (!config.log.wandb.empty()) wandb.emplace(config.log.wandb, run);
    });
    outcome = RunTraining(config, train);
  } catch (const Stopped&) {
    if (!ranks.alone()) throw;
    outcome = {StoppedBeforeItBegan(), {}, {}};
  }
  if (!options.train.dump.empty()) return;
  TellResult({{"dir", config.run.dir}, {"steps", outcome.steps}, {"stopped_by", outcome.stopped_by}});
  if (!ranks.first()) return;
  if (!outcome.stopped_by.empty()) {
    tell_page_fault();
    fmt::print("{}\n", StopMessage(outcome, config.train.steps));
    return;
  }
  write_page();
  tell_page_fault();
  if (wandb && page_fault.empty()) wandb->WriteReport(page);
  if (outcome.steps > config.train.steps) {
    const std::vector<int64_t> kept = CheckpointStore(run).Steps();
    const bool can_go_back = std::ranges::find(kept, config.train.steps) != kept.end();
    Tell("augur: warning: the run stands at step {} already; {}\n", outcome.steps,
         can_go_back ? fmt::format("run.resume={} goes back", config.train.steps)
                     : "another run.dir trains anew");
  }
  fmt::print("trained {} step{} in {:.0f} s{}\n", outcome.steps, outcome.steps == 1 ? "" : "s",
             outcome.seconds, NothingToDo(outcome));
  if (outcome.after) {
    const std::string before = outcome.before ? fmt::format("{:.1f}% -> ", 100 * *outcome.before) : "";
    fmt::print("held-out avg@{}: {}{:.1f}%\n", config.eval.samples, before, 100 * *outcome.after);
  }
  fmt::print("{}\n", DescribeResult(run));
  if (page_fault.empty()) fmt::print("report: {}\n", page.string());
}

}  // namespace

void AddTrainCommand(CLI::App& app) {
  CLI::App* command = app.add_subcommand("train", "Reinforcement learning of a model on verifiable tasks");
  const auto options = std::make_shared<TrainFlags>();
  command->add_option("CONFIG", options->config, "A YAML file, e.g. recipes/quickstart.yaml")->required();
  command->add_option("CHANGES", options->overrides,
                      "key=value pairs that change it, e.g. train.steps=20 mask=clip");
  command->add_flag("--print-config", options->print_config,
                    "Print the configuration with every default filled in, and end");
  // For tests: the first step's updates (samples, gradients, weights) as files, and a NaN in a gradient.
  command->add_option("--dump-step", options->train.dump)->group("");
  command->add_option("--corrupt-gradient", options->train.corrupt_gradient_step)->group("");
  RlConfig defaults;
  command->footer(
      "The same command again continues a run from its newest checkpoint (run.resume). The first keys to "
      "know; "
      "`augur config --help`\nlists all:\n\n" +
      HelpText(FieldsOf(defaults), kFirstTrainKeys));
  command->callback([options] { Train(*options); });
}

}  // namespace augur
