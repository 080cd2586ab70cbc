// augur compare: the same start, data and seeds under several masks.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "analysis/comparison.h"
#include "base/error.h"
#include "base/file.h"
#include "base/run_directory.h"
#include "base/tell.h"
#include "cli/commands.h"
#include "cli/compare_file.h"
#include "cli/exit_code.h"
#include "cli/flag_checks.h"
#include "cli/study_figures.h"
#include "cli/study_run.h"
#include "config/pin.h"
#include "config/read.h"
#include "report/report.h"

namespace augur {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kComparedSeeds = 8;

struct CompareFlags {
  std::vector<std::string> words;  // files, and key=value
  std::string dir;
  int64_t seeds = 0;  // 0: the file's, or kComparedSeeds
  int64_t first_seed = 0;
  int64_t workers = 0;  // 0: one a core, or one on a GPU
  double level = 0.95;
  bool worker = false;
};

struct Plan {
  fs::path dir;
  int64_t seeds = 0;
  std::vector<CompareArm> arms;
};

Plan MakePlan(const CompareFlags& arguments) {
  Plan plan;
  plan.seeds = arguments.seeds;
  std::vector<std::string> files, overrides;
  for (const std::string& word : arguments.words) {
    (word.find('=') == std::string::npos ? files : overrides).push_back(word);
  }
  RefuseKeysOfStudy(overrides);
  if (files.empty())
    throw Error("compare", "no configuration was named", "for example recipes/compare-tiny.yaml");
  for (const std::string& name : files) {
    CompareFile file = ReadCompareFile(name);
    if (!file.grid.empty()) throw Error(name, "has a grid", "run augur frontier with it");
    if (plan.dir.empty()) plan.dir = file.dir;
    if (plan.seeds == 0) plan.seeds = file.seeds;
    for (CompareArm& arm : file.arms) {
      RefuseKeysOfArm(arm, overrides);
      arm.overrides.insert(arm.overrides.end(), overrides.begin(), overrides.end());
      const bool taken =
          std::ranges::any_of(plan.arms, [&](const CompareArm& a) { return a.name == arm.name; });
      if (taken)
        throw Error(name, fmt::format("a second arm is named '{}'", arm.name), "give each its own name");
      plan.arms.push_back(std::move(arm));
    }
  }
  if (!arguments.dir.empty()) plan.dir = arguments.dir;
  if (plan.dir.empty()) plan.dir = "runs/compare";
  if (plan.seeds == 0) plan.seeds = kComparedSeeds;
  return plan;
}

// Seed by seed, so that a half-done comparison is a fair one. One thread a run, however many run at once: the
// result does not depend on that.
std::vector<StudyRun> StudyRunsOf(const Plan& plan, const CompareFlags& arguments) {
  std::vector<StudyRun> runs;
  for (int64_t i = 0; i < plan.seeds; ++i) {
    for (const CompareArm& arm : plan.arms) {
      const int64_t seed = arguments.first_seed + i;
      std::string name = fmt::format("{}/seed-{}", arm.name, seed);
      std::vector<std::string> overrides = {"run.threads=1"};
      if (arguments.worker) overrides.push_back("log.console=false");
      overrides.insert(overrides.end(), arm.overrides.begin(), arm.overrides.end());
      overrides.push_back(fmt::format("run.seed={}", seed));
      overrides.push_back(fmt::format("run.dir={}", (plan.dir / name).string()));
      runs.push_back({std::move(name), PinRevisions(ReadRlConfig(arm.config, overrides))});
      if (runs.back().config.eval.files.empty()) {
        throw Error(arm.config, "masks are compared by their accuracy, and these runs are not evaluated",
                    "set eval.files");
      }
    }
  }
  return runs;
}

// The comparison's page links to those of its runs.
void WriteRunPage(const fs::path& run) {
  const fs::path page = run / "report.html", metrics = run / "metrics.jsonl";
  if (!fs::exists(metrics)) return;
  if (fs::exists(page) && fs::last_write_time(page) >= fs::last_write_time(metrics)) return;
  WriteReport(std::vector{run}, page);
}

// Returns how many runs are not finished.
size_t PrintComparison(const Json& comparison) {
  size_t width = 12;
  for (const Json& arm : comparison["arms"]) width = std::max(width, arm["name"].get<std::string>().size());
  const std::string baseline = "minus " + comparison["baseline"].get<std::string>();
  const size_t difference_width = std::max<size_t>(22, baseline.size());
  const auto row = [&](const std::string& name, const std::string& accuracy, const std::string& difference,
                       const std::string& p, const std::string& area, const std::string& collapses) {
    fmt::print("{:<{}} {:>22} {:>{}} {:>7} {:>22} {:>10}\n", name, width, accuracy, difference,
               difference_width, p, area, collapses);
  };
  row("mask", "final accuracy %", baseline, "p", "area under curve %", "collapses");
  for (const Json& arm : comparison["arms"]) {
    const Json& against = arm["minus_baseline"];
    row(arm["name"], PercentAndInterval(arm["final_accuracy"]),
        against.is_null() ? "" : PercentAndInterval(against["final_accuracy"]),
        against.is_null() ? "" : PValue(against["final_accuracy"]), PercentAndInterval(arm["auc_accuracy"]),
        fmt::format("{}", arm["collapses"].get<int64_t>()));
  }
  size_t unfinished = 0, runs = 0;
  for (const Json& arm : comparison["arms"]) {
    int64_t broken = 0;
    for (const Json& run : arm["runs"]) {
      const bool broke_down = run["broke_down"].get<bool>();
      broken += broke_down;
      unfinished += !broke_down && !run["finished"].get<bool>();
      ++runs;
    }
    if (broken == 0) continue;
    fmt::print("{}: {} of {} seeds broke down, count as collapses, and are left out of its means\n",
               arm["name"].get<std::string>(), broken, arm["runs"].size());
  }
  if (unfinished > 0) {
    fmt::print(
        "{} of {} runs are not finished and are left out; the same command goes on with those nobody else is "
        "at\n",
        unfinished, runs);
  }
  const size_t seeds = comparison["seeds"].size();
  fmt::print("{} seed{}; {:.4g}% intervals by Student's t over seeds, p by the paired t test\n", seeds,
             seeds == 1 ? "" : "s", 100 * comparison["level"].get<double>());
  if (seeds < static_cast<size_t>(kFewSeeds)) {
    Tell("augur: warning: {} little; take at least {} (--seeds {})\n",
         seeds == 1 ? "1 seed says" : fmt::format("{} seeds say", seeds), kFewSeeds, kComparedSeeds);
  }
  return unfinished;
}

CopiesEnd TrainOneByOne(const fs::path& dir, std::span<const StudyRun> runs) {
  for (size_t i = 0; i < runs.size(); ++i) {
    const std::unique_ptr<Claim> claim = ClaimRun(dir, runs[i]);
    if (!claim) continue;
    const std::string arm = runs[i].name.substr(0, runs[i].name.rfind('/'));
    Tell("[{}/{}] {}, seed {}\n", i + 1, runs.size(), arm, runs[i].config.run.seed);
    if (!TrainStudyRun(runs[i].config)) return CopiesEnd::kStopped;
  }
  return CopiesEnd::kDone;
}

void RunCompare(const CompareFlags& arguments) {
  const Plan plan = MakePlan(arguments);
  const std::vector<StudyRun> runs = StudyRunsOf(plan, arguments);  // reads every configuration first
  if (arguments.worker) return WorkThrough(runs, {.dir = plan.dir});
  RefuseToReplace(plan.dir, "compare.json", {"compare.csv", "report.html"});
  for (const StudyRun& run : runs) IsDone(run.config);  // refuses runs of another configuration
  const int64_t workers = StudyWorkers(arguments.workers, runs);
  const CopiesEnd end = workers > 1 ? DealOut("compare", workers, runs) : TrainOneByOne(plan.dir, runs);
  if (end == CopiesEnd::kStopped) {
    fmt::print("stopped; the same command goes on from there\n");
    return;
  }
  std::vector<ComparisonArm> arms;
  for (size_t i = 0; i < runs.size(); ++i) {
    const size_t a = i % plan.arms.size();
    if (a == arms.size()) arms.push_back({plan.arms[a].name, FormatRule(runs[i].config.mask.rule), {}});
    arms[a].runs.push_back(ReadStudyRun(runs[i].config));
  }
  const int64_t steps = runs.back().config.train.steps;
  const Json comparison = SummarizeComparison(arms, {.level = arguments.level, .steps = steps});
  WriteFileAtomically(plan.dir / "compare.json", comparison.dump() + "\n");
  WriteFileAtomically(plan.dir / "compare.csv", ComparisonCsv(arms));
  for (const StudyRun& run : runs) WriteRunPage(run.config.run.dir);
  WriteReport(std::vector{plan.dir}, plan.dir / "report.html");
  const size_t unfinished = PrintComparison(comparison);
  fmt::print("{}\n", (plan.dir / "report.html").string());
  if (end == CopiesEnd::kKilled && unfinished > 0) throw ExitCode{1};
}

}  // namespace

void AddCompareCommand(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("compare", "Train under several masks with the same seeds, and compare");
  command->footer(
      "CONFIG is a comparison,\n\n"
      "  base: quickstart.yaml                  # one of augur train's, next to this file\n"
      "  set: [train.steps=100, eval.every=10]  # for every arm\n"
      "  seeds: 4                               # optional\n"
      "  arms:                                  # the first is what the others are held against\n"
      "    clip: [mask=clip]\n"
      "    predictive: [mask=predictive-kl-exact]\n\n"
      "or several files of augur train's, an arm each. Every run has a directory ARM/seed-N; the command\n"
      "goes on where it was stopped. All cores are used, one run each. Writes compare.json, compare.csv and\n"
      "report.html.\n"
      "Intervals are Student's t over seeds; differences are paired by seed.\n\n"
      "Example: augur compare recipes/compare-tiny.yaml --seeds 8\n");
  const auto arguments = std::make_shared<CompareFlags>();
  command->add_option("CONFIG", arguments->words, "Comparisons or configurations, and key=value for all arms")
      ->required();
  command
      ->add_option("--seeds", arguments->seeds,
                   fmt::format("How many seeds; by default the file's, or {}", kComparedSeeds))
      ->check(Within(1, kMostSeeds));
  command->add_option("--first-seed", arguments->first_seed, "The first of them")
      ->check(Within(0, kLastFirstSeed))
      ->capture_default_str();
  command
      ->add_option("--workers", arguments->workers,
                   "How many runs at once, each on one thread unless run.threads says otherwise; by default "
                   "as many as the cores hold, or one on a GPU")
      ->check(Within(1, kMostWorkers));
  command->add_flag("--worker", arguments->worker)->group("");
  command->add_option("--dir", arguments->dir,
                      "Where the runs go; by default the file's dir, or runs/ and its name");
  command->add_option("--level", arguments->level, "Of the confidence intervals")
      ->check(Between(0.5, 0.999))
      ->capture_default_str();
  command->callback([arguments] { RunCompare(*arguments); });
}

}  // namespace augur
