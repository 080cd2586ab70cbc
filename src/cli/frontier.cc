// augur frontier: where training breaks, arm by arm.
#include "analysis/frontier.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/claim.h"
#include "base/error.h"
#include "base/file.h"
#include "base/run_lock.h"
#include "cli/commands.h"
#include "cli/flag_checks.h"
#include "cli/frontier_plan.h"
#include "cli/processes.h"
#include "cli/study_figures.h"
#include "cli/study_run.h"
#include "metrics/progress.h"
#include "report/report.h"
#include "rollout/device.h"

namespace augur {
namespace {

namespace fs = std::filesystem;

// In the directory of a run that broke down.
constexpr const char* kBreakdownFile = "breakdown.json";

struct FrontierFlags {
  FrontierPlanOptions plan;
  int64_t workers = 0;
  double level = 0.95;
  bool draw = false, keep_weights = false, worker = false;
};

bool IsDone(const RlConfig& config) {
  if (!fs::exists(fs::path(config.run.dir) / kBreakdownFile)) return IsFinished(config);
  ExpectSameConfig(config);
  return true;
}

// Whether no process has the run's directory.
bool IsFree(const fs::path& run) {
  try {
    const RunLock lock(run);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// False where a signal asked to stop.
bool TrainFrontierRun(const RlConfig& config, bool keep_weights) {
  const fs::path run = config.run.dir;
  std::string failure;
  if (!TrainOne(config, &failure)) return false;
  if (!failure.empty()) WriteFileAtomically(run / kBreakdownFile, Json({{"note", failure}}).dump() + "\n");
  if (keep_weights) return true;
  for (const char* weights : {"checkpoints", "model"}) fs::remove_all(run / weights);
  return true;
}

// Trains one run after the other that nobody else does, until none is left.
void Work(const FrontierPlan& plan, bool keep_weights) {
  for (bool trained = true; trained;) {
    trained = false;
    for (const FrontierRun& run : plan.runs) {
      const RlConfig config = plan.ConfigOf(run);
      if (IsDone(config)) continue;
      std::string name = run.name;
      std::ranges::replace(name, '/', '_');
      const std::unique_ptr<Claim> claim = Claim::Take(plan.dir / "claims", name);
      if (!claim || IsDone(config) || !IsFree(config.run.dir)) continue;
      if (!TrainFrontierRun(config, keep_weights)) return;
      trained = true;
    }
  }
}

int64_t CountDone(const FrontierPlan& plan) {
  return std::ranges::count_if(plan.runs, [&](const FrontierRun& run) {
    const fs::path directory = plan.DirectoryOf(run);
    return fs::exists(directory / "summary.json") || fs::exists(directory / kBreakdownFile);
  });
}

RunOutcome ReadFrontierRun(const FrontierPlan& plan, const FrontierRun& run) {
  const fs::path directory = plan.DirectoryOf(run);
  if (!fs::exists(directory / "config.yaml")) {
    RunOutcome absent;
    absent.seed = run.seed;
    absent.note = "not trained yet";
    return absent;
  }
  RunOutcome outcome = ReadRunOutcome(directory, run.seed, plan.ConfigOf(run).train.steps);
  if (fs::exists(directory / kBreakdownFile)) {
    const Json breakdown = ParseJson(ReadFile(directory / kBreakdownFile), directory.string());
    outcome.note = breakdown.value("note", "");
    outcome.broke_down = true;
  }
  return outcome;
}

void Draw(const FrontierPlan& plan, double level) {
  std::vector<FrontierArm> arms;
  for (size_t a = 0; a < plan.arms.size(); ++a) {
    arms.push_back({plan.arms[a], plan.rules[a], std::vector<std::vector<RunOutcome>>(CellCount(plan.axes))});
  }
  for (const FrontierRun& run : plan.runs)
    arms[run.arm].cells[run.cell].push_back(ReadFrontierRun(plan, run));
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
  if (frontier["unfinished"] != 0) {
    fmt::print("{} of {} runs are not finished; the same command goes on with those nobody else is at\n",
               frontier["unfinished"].get<int64_t>(), plan.runs.size());
  }
  fmt::print("{}\n", (plan.dir / "report.html").string());
}

int64_t WorkersFor(const FrontierFlags& flags, const FrontierPlan& plan) {
  const auto runs = static_cast<int64_t>(plan.runs.size()) - CountDone(plan);
  if (flags.workers > 0) return std::min(flags.workers, runs);
  const RlConfig first = plan.ConfigOf(plan.runs.front());
  if (!RunDevice(first.run).is_cpu()) return std::min<int64_t>(1, runs);
  const auto cores = static_cast<int64_t>(std::thread::hardware_concurrency());
  return std::min(std::max<int64_t>(1, cores / std::max<int64_t>(1, first.run.threads)), runs);
}

void RunFrontier(const FrontierFlags& flags) {
  const FrontierPlan plan = MakeFrontierPlan(flags.plan);
  if (flags.worker) {
    EndWithParent();
    Work(plan, flags.keep_weights);
    return;
  }
  for (const FrontierRun& run : plan.runs)
    IsDone(plan.ConfigOf(run));  // refuses runs of another configuration
  const int64_t workers = flags.draw ? 0 : WorkersFor(flags, plan);
  if (workers > 0) {
    const int64_t done = CountDone(plan);
    Progress bar("frontier", "run", static_cast<int64_t>(plan.runs.size()), {.begin = done});
    const bool finished = RunCopies(static_cast<int>(workers), "--worker",
                                    [&] { bar.Update(CountDone(plan), fmt::format("{} at once", workers)); });
    if (!finished) {
      fmt::print("stopped; the same command goes on from there\n");
      return;
    }
  }
  Draw(plan, flags.level);
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
      "    updates_per_batch: [4, 16, 64]    # from each batch of responses\n"
      "    rollout.staleness: [0, 4]         # or any other key\n"
      "  arms:                               # the first is what the others are held against\n"
      "    none: [mask=none]\n"
      "    predictive: [mask=predictive-kl-exact]\n\n"
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
      ->check(AtLeast(1));
  command->add_option("--first-seed", flags->plan.first_seed, "The first of them")
      ->check(AtLeast(0))
      ->capture_default_str();
  command->add_option("--dir", flags->plan.dir,
                      "Where the runs go; by default the file's dir, or runs/ and its name");
  command
      ->add_option("--workers", flags->workers,
                   "How many runs at once on this machine; by default one a core, or one on a GPU")
      ->check(AtLeast(1));
  command->add_option("--level", flags->level, "Of the confidence intervals")
      ->check(CLI::Range(0.5, 0.999))
      ->capture_default_str();
  command->add_flag("--draw", flags->draw, "Train nothing; draw what is there");
  command->add_flag("--keep-weights", flags->keep_weights,
                    "Keep the models and checkpoints of finished runs");
  command->add_flag("--worker", flags->worker)->group("");
  command->callback([flags] { RunFrontier(*flags); });
}

}  // namespace augur
