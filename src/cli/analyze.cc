// augur analyze: do direction criteria tell where the divergence goes, and do their masks hold it?
#include "analysis/analyze.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/run_directory.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/flag_checks.h"
#include "cli/processes.h"
#include "cli/study_run.h"
#include "config/read.h"
#include "config/write.h"
#include "metrics/progress.h"
#include "report/report.h"

namespace augur {
namespace {

// As many as a training step may have responses.
constexpr int64_t kMostSequences = 1 << 20;
// More is a slip of the pen.
constexpr int64_t kMostWarmup = 1 << 20, kMostPreceding = 1 << 10, kMostDecomposed = 1 << 20;

struct AnalyzeFlags {
  std::string config;
  std::vector<std::string> overrides;
  std::string divergences;  // separated by commas; empty for all
  AnalyzeOptions options;
  int64_t workers = 1;
  bool worker = false;
};

std::vector<Proximity> ParseDivergences(const std::string& names) {
  std::vector<Proximity> chosen;
  if (names.empty()) return chosen;
  for (const std::string& name : CLI::detail::split(names, ',')) {
    if (std::ranges::find(kDivergenceNames, name) == std::end(kDivergenceNames)) {
      throw UnknownName("--divergences", "divergence", name, kDivergenceNames);
    }
    const auto divergence = ParseName<Proximity>("--divergences", "divergence", name);
    if (std::ranges::find(chosen, divergence) != chosen.end()) {
      throw Error("--divergences", fmt::format("'{}' is there twice", name), "write it once");
    }
    chosen.push_back(divergence);
  }
  return chosen;
}

std::string Number(const Json& value, double scale, int digits) {
  if (!value.is_number() || !std::isfinite(value.get<double>())) return "-";
  return fmt::format("{:.{}f}", scale * value.get<double>(), digits);
}
std::string WithError(const Json& figure, double scale, int digits) {
  return Number(figure["mean"], scale, digits) + " ± " + Number(figure["se"], scale, digits);
}

void PrintAnalysis(const Json& divergence) {
  fmt::print("\n{}: {} of {} tokens outside delta = {}; mean change without a mask {} (1e-4)\n",
             divergence["divergence"].get<std::string>(), divergence["outside_total"].dump(),
             divergence["tokens"].dump(), divergence["delta"].dump(),
             WithError(divergence["unmasked_change"], 1e4, 1));
  fmt::print("{:<22} {:>16} {:>18} {:>18} {:>18}\n", "criterion", "sign accuracy %", "change - unmasked",
             "change - ratio", "unsafe keep - ratio %");
  for (const Json& c : divergence["criteria"]) {
    const bool ratio = !c.contains("disagreements");
    fmt::print("{:<22} {:>16} {:>19} {:>19} {:>19}\n", c["name"].get<std::string>(),
               WithError(c["prediction"]["sign_accuracy"], 100, 1),
               WithError(c["control"]["minus_unmasked"], 1e4, 1),
               ratio ? "" : WithError(c["control"]["minus_ratio"], 1e4, 1),
               ratio ? "" : WithError(c["disagreements"]["unsafe_keep_minus_ratio"], 100, 1));
  }
}

CopiesEnd MeasureAll(const RlConfig& config, const AnalyzeFlags& arguments, const AnalyzeOptions& options,
                     const std::filesystem::path& folder) {
  const bool alone = arguments.workers == 1;
  int64_t done = CountMeasured(config, options, folder);
  Progress bar("analyze", "seed", options.seeds,
               {.shown = config.log.console, .begin = done, .plain_interval = alone ? 0.0 : 10.0});
  if (alone) {
    MeasureSeeds(config, options, folder,
                 [&](int64_t outside) { bar.Update(++done, fmt::format("{} tokens outside", outside)); });
    return CopiesEnd::kDone;
  }
  CheckAnalyzable(config);
  return RunCopies(static_cast<int>(arguments.workers), "--worker", [&] {
    bar.Update(CountMeasured(config, options, folder), fmt::format("{} at once", arguments.workers));
  });
}

void RunAnalyze(const AnalyzeFlags& arguments) {
  AnalyzeOptions options = arguments.options;
  options.divergences = ParseDivergences(arguments.divergences);
  RlConfig config = ReadRlConfig(arguments.config, arguments.overrides);
  if (config.run.seed > kLastFirstSeed) {
    throw Error("run.seed", fmt::format("there are no {} seeds from {} on", options.seeds, config.run.seed),
                "take a smaller one");
  }
  const std::filesystem::path run = config.run.dir;
  if (std::filesystem::exists(run / "metrics.jsonl") || std::filesystem::exists(run / "checkpoints")) {
    throw Error(
        run.string(), "holds a run, whose configuration and report an analysis would replace",
        fmt::format("set run.dir to a directory of its own, for example run.dir={}-analysis", run.string()));
  }
  RefuseToReplace(run, "analysis.json", {"config.yaml", "analysis_tokens.csv", "report.html"});
  std::error_code failed;
  std::filesystem::create_directories(run, failed);
  if (failed) throw Error(run.string(), failed.message(), "set run.dir to a directory that can be written");
  const std::filesystem::path folder = SeedFolder(config, options);
  if (arguments.worker) {
    EndWithParent();
    MeasureSeeds(config, options, folder, [](int64_t) {});
    return;
  }
  const CopiesEnd end = MeasureAll(config, arguments, options, folder);
  if (end == CopiesEnd::kStopped) {
    fmt::print("stopped; the same command goes on from there\n");
    return;
  }
  const AnalyzeResult result = SummarizeSeeds(config, options, folder);
  WriteFileAtomically(run / "analysis.json",
                      result.analysis.dump() + "\n");  // the mark of an analysis, first
  WriteFileAtomically(run / "config.yaml", ToYaml(FieldsOf(config)));
  WriteFileAtomically(run / "analysis_tokens.csv", result.csv);
  WriteReport(std::vector{run}, run / "report.html");
  for (const Json& divergence : result.analysis["divergences"]) PrintAnalysis(divergence);
  const int64_t absent = options.seeds - CountMeasured(config, options, folder);
  if (absent > 0) {
    fmt::print(
        "{} of {} seeds are left out: other processes are at them, or ended before they were done; the same "
        "command goes on with those nobody is at\n",
        absent, options.seeds);
  }
  fmt::print("\n{}\n", (run / "report.html").string());
  if (end == CopiesEnd::kKilled && absent > 0) throw ExitCode{1};
}

}  // namespace

void AddAnalyzeCommand(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("analyze", "Test, token by token, what direction criteria predict and control");
  command->footer(
      "For each seed: some training steps, a new batch of rollouts, and from the same state one\n"
      "update under each criterion's mask (ratio; predicted with each tail; for each divergence); then D\n"
      "again on the tokens that were outside. CONFIG is one of augur train's. Writes analysis.json,\n"
      "analysis_tokens.csv and report.html to run.dir, and what each seed found to run.dir/seeds: the same\n"
      "command goes on where it was stopped, and takes more seeds to those that are there.\n\n"
      "Example: augur analyze recipes/quickstart.yaml run.dir=runs/analysis --seeds 8\n");
  const auto arguments = std::make_shared<AnalyzeFlags>();
  AnalyzeOptions& options = arguments->options;
  command->add_option("CONFIG", arguments->config, "A YAML file, as for augur train")->required();
  command->add_option("CHANGES", arguments->overrides,
                      "key=value pairs that change it, e.g. mask.delta=0.05 model.precision=fp8");
  command->add_option("--seeds", options.seeds, "How many seeds, counted from run.seed")
      ->check(Within(1, kMostSeeds))
      ->capture_default_str();
  command->add_option("--sequences", options.sequences, "Responses in each seed's batch")
      ->check(Within(1, kMostSequences))
      ->capture_default_str();
  command->add_option("--warmup", options.warmup, "Training steps before the batch that is measured")
      ->check(Within(0, kMostWarmup))
      ->capture_default_str();
  command
      ->add_option("--preceding", options.preceding,
                   "Minibatches of the batch learned from before the measured one")
      ->check(Within(0, kMostPreceding))
      ->capture_default_str();
  command
      ->add_option("--decompose", options.decomposed,
                   "Outside tokens of a seed whose change is split by cause")
      ->check(Within(0, kMostDecomposed))
      ->capture_default_str();
  command
      ->add_option("--workers", arguments->workers,
                   "How many seeds at once, each in a process of its own with run.threads threads")
      ->check(Within(1, kMostWorkers))
      ->capture_default_str();
  command->add_flag("--worker", arguments->worker)->group("");
  command->add_option(
      "--divergences", arguments->divergences,
      fmt::format("Which divergences: some of {}; all by default", fmt::join(kDivergenceNames, ",")));
  command->callback([arguments] { RunAnalyze(*arguments); });
}

}  // namespace augur
