#include "analysis/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "analysis/statistics.h"
#include "base/error.h"
#include "metrics/json_lines.h"
#include "metrics/metrics_file.h"

namespace augur {
namespace {

constexpr double kNoValue = std::numeric_limits<double>::quiet_NaN();

const std::pair<const char*, const char*> kCurves[] = {
    {"reward", "critic/score/mean"}, {"response_length", "response_length/mean"},
    {"ppo_kl", "actor/ppo_kl"},      {"clip_fraction", "mask/masked"},
    {"outside", "mask/outside"},     {"updates", "actor/updates"}};

// The mean of val-core/<source>/acc/mean@k over sources; NaN where none was evaluated.
double AccuracyOf(const Json& data) {
  double sum = 0;
  int count = 0;
  for (const auto& [name, value] : data.items()) {
    if (!name.starts_with("val-core/") || name.find("/acc/mean@") == std::string::npos || !value.is_number())
      continue;
    sum += value.get<double>();
    ++count;
  }
  return count > 0 ? sum / count : kNoValue;
}

using Figure = std::function<double(const RunOutcome&)>;

// Seed by seed; NaN for runs that are not finished.
std::vector<double> OfFinished(const ComparisonArm& arm, const Figure& figure) {
  std::vector<double> values;
  for (const RunOutcome& run : arm.runs) values.push_back(run.finished ? figure(run) : kNoValue);
  return values;
}

// Over the seeds that have a value; the others are null in by_seed.
Json WithInterval(const std::vector<double>& by_seed, const ComparisonOptions& options) {
  const std::vector<double> values = WithoutNan(by_seed);
  const Interval interval = MeanInterval(values, options.level);
  return {{"mean", Mean(values)}, {"low", interval.low}, {"high", interval.high}, {"by_seed", by_seed}};
}

Json Difference(const ComparisonArm& arm, const ComparisonArm& baseline, const Figure& figure,
                const ComparisonOptions& options) {
  std::vector<double> differences = OfFinished(arm, figure);
  const std::vector<double> held_against = OfFinished(baseline, figure);
  for (size_t i = 0; i < differences.size(); ++i) differences[i] -= held_against[i];
  const PairedTest test = TestDifferences(WithoutNan(differences));
  Json json = WithInterval(differences, options);
  json["p"] = test.p;
  json["below"] = test.below;
  json["above"] = test.above;
  json["sign_p"] = test.sign_p;
  return json;
}

// Mean and interval over the seeds that have a value at a step; steps that only some seeds reached are left
// out.
Json MeanCurve(const ComparisonArm& arm, const std::string& name, double level) {
  std::map<int64_t, std::vector<double>> by_step;
  size_t runs = 0;
  for (const RunOutcome& run : arm.runs) {
    const auto found = run.curves.find(name);
    if (found == run.curves.end()) continue;
    ++runs;
    for (const auto& [step, value] : found->second) by_step[step].push_back(value);
  }
  Json curve = {
      {"x", Json::array()}, {"mean", Json::array()}, {"low", Json::array()}, {"high", Json::array()}};
  for (const auto& [step, values] : by_step) {
    if (values.size() < runs) continue;
    const Interval interval = MeanInterval(values, level);
    curve["x"].push_back(step);
    curve["mean"].push_back(Mean(values));
    curve["low"].push_back(interval.low);
    curve["high"].push_back(interval.high);
  }
  return curve;
}

Json SummarizeArm(const ComparisonArm& arm, const ComparisonArm& baseline, const ComparisonOptions& options) {
  const Figure final_accuracy = [](const RunOutcome& r) { return r.FinalAccuracy(); };
  const Figure area = [](const RunOutcome& r) { return r.AreaUnderAccuracy(); };
  Json json = {{"name", arm.name}, {"rule", arm.rule}};
  json["final_accuracy"] = WithInterval(OfFinished(arm, final_accuracy), options);
  json["auc_accuracy"] = WithInterval(OfFinished(arm, area), options);
  json["curves"]["accuracy"] = MeanCurve(arm, "accuracy", options.level);
  for (const auto& [name, metric] : kCurves) {
    json[name] = WithInterval(OfFinished(arm, [&](const RunOutcome& r) { return r.Late(name); }), options);
    json["curves"][name] = MeanCurve(arm, name, options.level);
  }
  json["collapses"] = std::ranges::count_if(arm.runs, [](const RunOutcome& run) { return run.Collapsed(); });
  if (&arm != &baseline) {
    json["minus_baseline"] = {{"final_accuracy", Difference(arm, baseline, final_accuracy, options)},
                              {"auc_accuracy", Difference(arm, baseline, area, options)}};
  } else {
    json["minus_baseline"] = nullptr;
  }
  Json runs = Json::array();
  for (const RunOutcome& run : arm.runs) {
    runs.push_back(
        {{"seed", run.seed}, {"finished", run.finished}, {"broke_down", run.broke_down}, {"note", run.note}});
  }
  json["runs"] = std::move(runs);
  return json;
}

}  // namespace

double RunOutcome::FinalAccuracy() const {
  if (broke_down) return kNoValue;
  const auto found = curves.find("accuracy");
  return found == curves.end() ? kNoValue : found->second.back().second;
}

double RunOutcome::AreaUnderAccuracy() const {
  if (broke_down) return kNoValue;
  const auto found = curves.find("accuracy");
  if (found == curves.end()) return kNoValue;
  const auto& points = found->second;
  const auto width = static_cast<double>(points.back().first - points.front().first);
  if (width == 0) return points.back().second;
  double area = 0;
  for (size_t i = 1; i < points.size(); ++i) {
    area += static_cast<double>(points[i].first - points[i - 1].first) *
            (points[i].second + points[i - 1].second) / 2;
  }
  return area / width;
}

double RunOutcome::MeanOf(const std::string& curve) const {
  const auto found = curves.find(curve);
  if (found == curves.end()) return kNoValue;
  double sum = 0;
  for (const auto& [step, value] : found->second) sum += value;
  return sum / static_cast<double>(found->second.size());
}

double RunOutcome::Late(const std::string& curve) const {
  const auto found = curves.find(curve);
  if (found == curves.end()) return kNoValue;
  const auto& points = found->second;
  const size_t count = std::max<size_t>(1, points.size() / 10);
  double sum = 0;
  for (size_t i = points.size() - count; i < points.size(); ++i) sum += points[i].second;
  return sum / static_cast<double>(count);
}

bool RunOutcome::Collapsed() const {
  if (broke_down) return true;
  const auto found = curves.find("accuracy");
  if (found == curves.end()) return false;
  double best = 0;
  for (const auto& [step, value] : found->second) best = std::max(best, value);
  return FinalAccuracy() < best / 2;
}

RunOutcome ReadRunOutcome(const std::filesystem::path& run, int64_t seed, int64_t steps) {
  struct StepData {
    int64_t step = 0;
    Json data;
  };
  RunOutcome outcome;
  outcome.seed = seed;
  std::vector<StepData> history;
  Notes notes;
  ReadJsonLines(
      run / kMetricsFile,
      [&](const Json& line, const std::string& where) {
        const Json &step = RequireKey(line, "step", where), &data = RequireKey(line, "data", where);
        if (!step.is_number_integer() || !data.is_object()) throw Error(where, "is no step", "");
        ForgetFrom(step.get<int64_t>(), &history);
        history.push_back({step.get<int64_t>(), data});
      },
      &notes);
  std::erase_if(history, [&](const StepData& step) { return step.step > steps; });
  for (const StepData& step : history) {
    const double accuracy = AccuracyOf(step.data);
    if (!std::isnan(accuracy)) outcome.curves["accuracy"].emplace_back(step.step, accuracy);
    for (const auto& [name, metric] : kCurves) {
      const auto found = step.data.find(metric);
      if (found == step.data.end() || !found->is_number()) continue;
      outcome.curves[name].emplace_back(step.step, found->get<double>());
    }
  }
  const int64_t reached = history.empty() ? 0 : history.back().step;
  outcome.finished = reached >= steps;
  if (!outcome.finished) outcome.note = fmt::format("{} of {} steps", reached, steps);
  for (const std::string& note : notes) outcome.note += (outcome.note.empty() ? "" : "; ") + note;
  return outcome;
}

Json SummarizeComparison(std::span<const ComparisonArm> arms, const ComparisonOptions& options) {
  Json json = {{"kind", "comparison"},   {"level", options.level},        {"interval", "student-t"},
               {"steps", options.steps}, {"baseline", arms.front().name}, {"seeds", Json::array()},
               {"arms", Json::array()}};
  for (const RunOutcome& run : arms.front().runs) json["seeds"].push_back(run.seed);
  for (const ComparisonArm& arm : arms) json["arms"].push_back(SummarizeArm(arm, arms.front(), options));
  return json;
}

std::string ComparisonCsv(std::span<const ComparisonArm> arms) {
  std::string csv = "mask,seed,finished,final_accuracy,auc_accuracy";
  for (const auto& [name, metric] : kCurves) csv += fmt::format(",{}", name);
  csv += ",collapsed\n";
  for (const ComparisonArm& arm : arms) {
    for (const RunOutcome& run : arm.runs) {
      csv += fmt::format("{},{},{},{:.8g},{:.8g}", arm.name, run.seed, run.finished ? 1 : 0,
                         run.FinalAccuracy(), run.AreaUnderAccuracy());
      for (const auto& [name, metric] : kCurves) csv += fmt::format(",{:.8g}", run.Late(name));
      csv += fmt::format(",{}\n", run.Collapsed() ? 1 : 0);
    }
  }
  return csv;
}

}  // namespace augur
