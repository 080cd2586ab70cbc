#include "report/series.h"

#include <cmath>
#include <map>

#include "base/error.h"
#include "metrics/point_record.h"

namespace augur {
namespace {

struct StepMetrics {
  int64_t step = 0;
  Json data;
};

StepMetrics ReadStep(const Json& line, const std::string& where) {
  const Json& step = RequireKey(line, "step", where);
  const Json& data = RequireKey(line, "data", where);
  if (!step.is_number_integer() || !data.is_object()) {
    throw Error(where, "expected {\"step\": number, \"data\": {...}}", "the file is damaged");
  }
  return {step.get<int64_t>(), data};
}

struct Series {
  Json x = Json::array(), y = Json::array();
};

// Whether the step at `index` of `count` stays when one in `stride` does. Steps with a metric that most
// others lack, such as an evaluation, always stay.
bool Stays(size_t index, size_t count, size_t stride, const StepMetrics& step, size_t usual_size) {
  return index % stride == 0 || index + 1 == count || step.data.size() > usual_size;
}

// How many metrics the median step has.
size_t UsualSize(const std::vector<StepMetrics>& steps) {
  std::map<size_t, size_t> sizes;
  for (const StepMetrics& step : steps) ++sizes[step.data.size()];
  size_t seen = 0;
  for (const auto& [size, count] : sizes) {
    seen += count;
    if (2 * seen >= steps.size()) return size;
  }
  return 0;
}

}  // namespace

Json ReadSeries(const std::filesystem::path& run, size_t limit, Notes* notes) {
  std::vector<StepMetrics> steps;
  const bool found = ReadJsonLines(
      run / "metrics.jsonl",
      [&](const Json& line, const std::string& where) {
        StepMetrics step = ReadStep(line, where);
        ForgetFrom(step.step, &steps);
        steps.push_back(std::move(step));
      },
      notes);
  if (steps.empty()) {
    notes->push_back(found ? "metrics.jsonl holds no step: no curves" : "no metrics.jsonl: no curves");
    return nullptr;
  }
  const size_t stride = (steps.size() + limit - 1) / limit;
  if (stride > 1) {
    notes->push_back(fmt::format("{} steps: the curves show one in {}", steps.size(), stride));
  }
  const size_t usual = UsualSize(steps);
  Json shown = Json::array();
  std::map<std::string, Series> series;
  for (size_t i = 0; i < steps.size(); ++i) {
    if (!Stays(i, steps.size(), stride, steps[i], usual)) continue;
    shown.push_back(steps[i].step);
    for (const auto& [name, value] : steps[i].data.items()) {
      if (!value.is_number() || !std::isfinite(value.get<double>())) continue;
      series[name].x.push_back(steps[i].step);
      series[name].y.push_back(value);
    }
  }
  Json out = Json::object();
  for (auto& [name, values] : series) {
    out[name]["y"] = std::move(values.y);
    if (values.x.size() != shown.size()) out[name]["x"] = std::move(values.x);
  }
  return {{"steps", std::move(shown)}, {"series", std::move(out)}};
}

Json ReadPoints(const std::filesystem::path& run, size_t limit, Notes* notes) {
  std::vector<PointsRecord> records;
  ReadJsonLines(
      run / kPointsFile,
      [&](const Json& line, const std::string& where) {
        PointsRecord record = PointsFromJson(line, where);
        ForgetFrom(record.step, &records);
        records.push_back(std::move(record));
      },
      notes);
  if (records.empty()) return nullptr;
  int64_t tokens = 0, outside = 0;
  size_t count = 0;
  for (const PointsRecord& record : records) {
    tokens += record.tokens;
    outside += record.outside;
    count += record.points.size();
  }
  const size_t stride = (count + limit - 1) / limit;
  Json points = Json::array();
  size_t index = 0;
  for (const PointsRecord& record : records) {
    for (const TokenPoint& p : record.points) {
      if (index++ % stride != 0) continue;
      points.push_back({record.step, p.ratio, p.divergence, p.direction, p.advantage, p.flags});
    }
  }
  return {{"tokens", tokens}, {"outside", outside}, {"points", std::move(points)}};
}

}  // namespace augur
