#include "analysis/frontier.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "analysis/statistics.h"

namespace augur {
namespace {

constexpr uint64_t kSurvivalKey = 0x66726f6e74696572;

struct AccuracyFigures {
  double start = std::nan(""), best = std::nan(""), last = std::nan("");
};

AccuracyFigures FiguresOf(const RunOutcome& run) {
  AccuracyFigures figures;
  const auto found = run.curves.find("accuracy");
  if (found == run.curves.end() || found->second.empty()) return figures;
  figures.start = figures.best = found->second.front().second;
  for (const auto& [step, value] : found->second) figures.best = std::max(figures.best, value);
  figures.last = run.FinalAccuracy();
  return figures;
}

// A run counts once it is finished or has broken down.
bool Counts(const RunOutcome& run) { return run.finished || IsBroken(run); }

// The share of the grid that survived with each seed; NaN for a seed of which a run is missing.
std::vector<double> SurvivingBySeed(const FrontierArm& arm) {
  std::vector<double> shares;
  for (size_t s = 0; s < arm.cells.front().size(); ++s) {
    double survived = 0;
    for (const auto& runs : arm.cells) survived += Counts(runs[s]) ? !IsBroken(runs[s]) : std::nan("");
    shares.push_back(survived / static_cast<double>(arm.cells.size()));
  }
  return shares;
}

Json WithSurvivalInterval(const std::vector<double>& by_seed, const FrontierOptions& options) {
  const std::vector<double> values = WithoutNan(by_seed);
  Interval interval{std::nan(""), std::nan("")};  // one seed says nothing about others
  if (values.size() > 1) interval = BootstrapMean(values, options.level, options.resamples, kSurvivalKey);
  return {{"mean", Mean(values)}, {"low", interval.low}, {"high", interval.high}, {"by_seed", by_seed}};
}

Json SummarizeCell(std::span<const RunOutcome> seeds) {
  std::vector<double> last, updates;
  int64_t broken = 0, counted = 0;
  Json runs = Json::array();
  for (const RunOutcome& run : seeds) {
    const AccuracyFigures figures = FiguresOf(run);
    if (Counts(run)) {
      ++counted;
      broken += IsBroken(run);
      if (!std::isnan(figures.last)) last.push_back(figures.last);
      if (const double mean = run.MeanOf("updates"); !std::isnan(mean)) updates.push_back(mean);
    }
    runs.push_back({{"seed", run.seed},
                    {"finished", run.finished},
                    {"broken", IsBroken(run)},
                    {"start", figures.start},
                    {"best", figures.best},
                    {"final", figures.last},
                    {"note", run.note}});
  }
  return {{"final_accuracy", Mean(last)},
          {"updates", Mean(updates)},
          {"broken", broken},
          {"counted", counted},
          {"runs", std::move(runs)}};
}

Json SummarizeFrontierArm(std::span<const FrontierAxis> axes, const FrontierArm& arm,
                          const FrontierArm& baseline, const FrontierOptions& options) {
  const std::vector<double> surviving = SurvivingBySeed(arm), held_against = SurvivingBySeed(baseline);
  Json json = {{"name", arm.name}, {"rule", arm.rule}, {"minus_baseline", nullptr}};
  json["surviving"] = WithSurvivalInterval(surviving, options);
  if (&arm != &baseline) {
    std::vector<double> differences;
    for (size_t s = 0; s < surviving.size(); ++s) differences.push_back(surviving[s] - held_against[s]);
    json["minus_baseline"] = WithSurvivalInterval(differences, options);
    json["minus_baseline"]["p"] = TestDifferences(WithoutNan(differences)).p;
  }
  json["cells"] = Json::array();
  for (size_t c = 0; c < arm.cells.size(); ++c) {
    Json cell = SummarizeCell(arm.cells[c]);
    const std::vector<size_t> place = CellPlace(axes, c);
    cell["at"] = place;
    for (size_t a = 0; a < axes.size(); ++a) cell["values"][axes[a].name] = axes[a].values[place[a]];
    json["cells"].push_back(std::move(cell));
  }
  return json;
}

}  // namespace

size_t CellCount(std::span<const FrontierAxis> axes) {
  size_t count = 1;
  for (const FrontierAxis& axis : axes) count *= axis.values.size();
  return count;
}

std::vector<size_t> CellPlace(std::span<const FrontierAxis> axes, size_t cell) {
  std::vector<size_t> place;
  for (const FrontierAxis& axis : axes) {
    place.push_back(cell % axis.values.size());
    cell /= axis.values.size();
  }
  return place;
}

bool IsBroken(const RunOutcome& run) {
  if (run.broke_down) return true;
  const auto found = run.curves.find("accuracy");
  if (!run.finished || found == run.curves.end()) return false;
  double best = 0;
  for (const auto& [step, accuracy] : found->second) {
    best = std::max(best, accuracy);
    if (accuracy < best / 2) return true;
  }
  return found->second.back().second < found->second.front().second;
}

Json SummarizeFrontier(std::span<const FrontierAxis> axes, std::span<const FrontierArm> arms,
                       const FrontierOptions& options) {
  Json json = {{"kind", "frontier"},    {"level", options.level}, {"baseline", arms.front().name},
               {"axes", Json::array()}, {"seeds", Json::array()}, {"arms", Json::array()}};
  for (const FrontierAxis& axis : axes)
    json["axes"].push_back({{"name", axis.name}, {"values", axis.values}});
  for (const RunOutcome& run : arms.front().cells.front()) json["seeds"].push_back(run.seed);
  int64_t unfinished = 0;
  for (const FrontierArm& arm : arms) {
    json["arms"].push_back(SummarizeFrontierArm(axes, arm, arms.front(), options));
    for (const auto& runs : arm.cells) {
      unfinished += std::ranges::count_if(runs, [](const RunOutcome& run) { return !Counts(run); });
    }
  }
  json["unfinished"] = unfinished;
  return json;
}

std::string FrontierCsv(std::span<const FrontierAxis> axes, std::span<const FrontierArm> arms) {
  std::string csv = "mask,seed";
  for (const FrontierAxis& axis : axes) csv += "," + axis.name;
  csv += ",finished,start,best,final,broken,updates\n";
  for (const FrontierArm& arm : arms) {
    for (size_t c = 0; c < arm.cells.size(); ++c) {
      const std::vector<size_t> place = CellPlace(axes, c);
      for (const RunOutcome& run : arm.cells[c]) {
        const AccuracyFigures figures = FiguresOf(run);
        csv += fmt::format("{},{}", arm.name, run.seed);
        for (size_t a = 0; a < axes.size(); ++a) csv += "," + axes[a].values[place[a]];
        csv += fmt::format(",{},{:.8g},{:.8g},{:.8g},{},{:.8g}\n", run.finished ? 1 : 0, figures.start,
                           figures.best, figures.last, IsBroken(run) ? 1 : 0, run.MeanOf("updates"));
      }
    }
  }
  return csv;
}

}  // namespace augur
