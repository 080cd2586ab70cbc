// augur frontier: where training breaks, arm by arm.
#include "analysis/frontier.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/run_directory.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/flag_checks.h"
#include "cli/frontier_plan.h"
#include "cli/study_figures.h"
#include "cli/study_run.h"
#include "report/report.h"

namespace augur {
namespace {

namespace fs = std::filesystem;

struct FrontierFlags {
  FrontierPlanOptions plan;
  int64_t workers = 0;
  double level = 0.95;
  bool draw = false, keep_weights = false, worker = false;
};

std::vector<StudyRun> StudyRunsOf(const FrontierPlan& plan) {
  std::vector<StudyRun> runs;
  for (const FrontierRun& run : plan.runs) runs.push_back({run.name, plan.ConfigOf(run)});
  return runs;
}

// Returns how many runs are not finished.
int64_t Draw(const FrontierPlan& plan, std::span<const StudyRun> runs, double level) {
  std::vector<FrontierArm> arms;
  for (size_t a = 0; a < plan.arms.size(); ++a) {
    arms.push_back({plan.arms[a], plan.rules[a], std::vector<std::vector<RunOutcome>>(CellCount(plan.axes))});
  }
  for (size_t i = 0; i < runs.size(); ++i) {
    const FrontierRun& place = plan.runs[i];
    arms[place.arm].cells[place.cell].push_back(ReadStudyRun(runs[i].config));
  }
  const Json frontier = SummarizeFrontier(plan.axes, arms, {.level = level});
  std::error_code failed;
  fs::create_directories(plan.dir, failed);
  if (failed) throw Error(plan.dir.string(), failed.message(), "choose another --dir");
  WriteFileAtomically(plan.dir / "frontier.json", frontier.dump() + "\n");
  WriteFileAtomically(plan.dir / "frontier.csv", FrontierCsv(plan.axes, arms));
  WriteReport(std::vector{plan.dir}, plan.dir / "report.html");
  size_t width = 4;
  for (const std::string& arm : plan.arms) width = std::max(width, arm.size());
  fmt::print("{:<{}} {:>26} {:>26} {:>7} {:>8}\n", "mask", width, "share of grid surviving %",
             "minus " + plan.arms.front(), "p", "broken");
  for (const Json& arm : frontier["arms"]) {
    int64_t broken = 0, counted = 0;
    for (const Json& cell : arm["cells"]) {
      broken += cell["broken"].get<int64_t>();
      counted += cell["counted"].get<int64_t>();
    }
    const Json& against = arm["minus_baseline"];
    fmt::print("{:<{}} {:>26} {:>26} {:>7} {:>8}\n", arm["name"].get<std::string>(), width,
               PercentAndInterval(arm["surviving"]), against.is_null() ? "" : PercentAndInterval(against),
               against.is_null() ? "" : PValue(against), fmt::format("{}/{}", broken, counted));
  }
  const auto unfinished = frontier["unfinished"].get<int64_t>();
  if (unfinished != 0) {
    fmt::print("{} of {} runs are not finished; the same command goes on with those nobody else is at\n",
               unfinished, plan.runs.size());
  }
  fmt::print(
      "{} seed{}; {:.4g}% bootstrap intervals over seeds, too narrow for few of them; p by the paired t "
      "test\n",
      plan.seeds.size(), plan.seeds.size() == 1 ? "" : "s", 100 * level);
  fmt::print("{}\n", (plan.dir / "report.html").string());
  return unfinished;
}

void RunFrontier(const FrontierFlags& flags) {
  const FrontierPlan plan = MakeFrontierPlan(flags.plan);
  const std::vector<StudyRun> runs = StudyRunsOf(plan);
  if (flags.worker) return WorkThrough(runs, {.dir = plan.dir, .keep_weights = flags.keep_weights});
  RefuseToReplace(plan.dir, "frontier.json", {"frontier.csv", "report.html"});
  for (const StudyRun& run : runs) IsDone(run.config);  // refuses runs of another configuration
  const int64_t workers = flags.draw ? 0 : StudyWorkers(flags.workers, runs);
  const CopiesEnd end = workers > 0 ? DealOut("frontier", workers, runs) : CopiesEnd::kDone;
  if (end == CopiesEnd::kStopped) {
    fmt::print("stopped; the same command goes on from there\n");
    return;
  }
  const int64_t unfinished = Draw(plan, runs, flags.level);
  if (end == CopiesEnd::kKilled && unfinished > 0) throw ExitCode{1};
}

}  // namespace

void AddFrontierCommand(CLI::App& app) {
  CLI::App* command = app.add_subcommand("frontier", "Find where training breaks, mask by mask");
  command->footer(
      "CONFIG is a comparison (see augur compare --help) with a grid,\n\n"
      "  base: quickstart.yaml\n"
      "  set: [train.steps=40, eval.every=5]\n"
      "  seeds: 4\n"
      "  grid:\n"
      "    lr_factor: [1, 4, 16]             # times train.lr\n"
      "    updates_per_batch: [4, 16, 64]    # at most, from each batch of responses\n"
      "    rollout.staleness: [0, 4]         # or any other key, or mask: [clip, none]\n"
      "  arms:                               # the first is what the others are held against\n"
      "    none: [mask=none]\n"
      "    predictive: [mask=predictive-kl-exact]\n\n"
      "updates_per_batch cuts a whole batch; groups that algorithm.skip_equal_groups leaves out shrink the\n"
      "batch and not the minibatch, so that there are fewer. `updates` in frontier.json says how many.\n"
      "A run is broken when its accuracy falls below half its best, ends below its start, or nothing\n"
      "finite is left. All cores are used, one run each; any number of machines that share the folder\n"
      "may run the same command at once, and each goes on where it was stopped. Writes frontier.json,\n"
      "frontier.csv and report.html: one map for each arm, and the share of the grid that it survives.\n"
      "Weights of finished runs are removed unless --keep-weights is given.\n\n"
      "Example: augur frontier recipes/frontier-tiny.yaml --dir runs/frontier-tiny\n");
  const auto flags = std::make_shared<FrontierFlags>();
  command->add_option("CONFIG", flags->plan.words, "A file with a grid, and key=value for every run")
      ->required();
  command->add_option("--seeds", flags->plan.seeds, "How many seeds; by default the file's, or 4")
      ->check(Within(1, kMostSeeds));
  command->add_option("--first-seed", flags->plan.first_seed, "The first of them")
      ->check(Within(0, kLastFirstSeed))
      ->capture_default_str();
  command->add_option("--dir", flags->plan.dir,
                      "Where the runs go; by default the file's dir, or runs/ and its name");
  command
      ->add_option("--workers", flags->workers,
                   "How many runs at once on this machine; by default one a core, or one on a GPU")
      ->check(Within(1, kMostWorkers));
  command->add_option("--level", flags->level, "Of the confidence intervals")
      ->check(Between(0.5, 0.999))
      ->capture_default_str();
  command->add_flag("--draw", flags->draw, "Train nothing; draw what is there");
  command->add_flag("--keep-weights", flags->keep_weights,
                    "Keep the models and checkpoints of finished runs");
  command->add_flag("--worker", flags->worker)->group("");
  command->callback([flags] { RunFrontier(*flags); });
}

}  // namespace augur
