#include "report/series.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"

namespace augur {
namespace {

bool IsEvaluated(const Json& data) {
  for (const auto& [name, value] : data.items()) {
    if (name.starts_with("val-")) return true;
  }
  return false;
}

}  // namespace

EvenSteps::EvenSteps(std::span<const int64_t> steps, size_t limit) {
  if (steps.empty()) return;
  first_ = steps.front();
  const auto fits = [&] {
    size_t kept = 0;
    EvenSteps all = *this;
    for (const int64_t step : steps) kept += all.Stays(step);
    return kept <= limit;
  };
  while (!fits()) stride_ *= 2;
}

bool EvenSteps::Stays(int64_t step) {
  const int64_t bucket = (step - first_) / stride_;
  return std::exchange(last_, bucket) != bucket;
}

void SeriesTable::Add(const Json& line, const std::string& where) {
  const Json& step = RequireKey(line, "step", where);
  const Json& data = RequireKey(line, "data", where);
  if (!step.is_number_integer() || !data.is_object()) {
    throw Error(where, "expected {\"step\": number, \"data\": {...}}", "the file is damaged");
  }
  Forget(step.get<int64_t>());
  for (const auto& [name, value] : data.items()) {
    if (!value.is_number() || !std::isfinite(value.get<double>())) continue;
    Column& column = columns_[name];
    column.at.push_back(steps_.size());
    column.values.push_back(value.get<double>());
  }
  steps_.push_back(step.get<int64_t>());
  evaluated_.push_back(IsEvaluated(data));
}

void SeriesTable::Forget(int64_t step) {
  if (steps_.empty() || steps_.back() < step) return;
  while (!steps_.empty() && steps_.back() >= step) {
    steps_.pop_back();
    evaluated_.pop_back();
  }
  for (auto& [name, column] : columns_) {
    while (!column.at.empty() && column.at.back() >= steps_.size()) {
      column.at.pop_back();
      column.values.pop_back();
    }
  }
  std::erase_if(columns_, [](const auto& entry) { return entry.second.at.empty(); });
}

std::vector<double> SeriesTable::Newest(const std::string& name, size_t count) const {
  const auto found = columns_.find(name);
  if (found == columns_.end()) return {};
  const std::vector<double>& all = found->second.values;
  return {all.end() - static_cast<std::ptrdiff_t>(std::min(count, all.size())), all.end()};
}

void SeriesTable::Thin(size_t limit) {
  std::vector<int64_t> with, without;
  for (size_t i = 0; i < steps_.size(); ++i) (evaluated_[i] ? with : without).push_back(steps_[i]);
  EvenSteps keep_with(with, limit), keep_without(without, limit);
  std::vector<size_t> place(steps_.size(), SIZE_MAX);  // where each step goes
  size_t kept = 0;
  for (size_t i = 0; i < steps_.size(); ++i) {
    const bool stays = (evaluated_[i] ? keep_with : keep_without).Stays(steps_[i]);
    if (!stays && i + 1 != steps_.size()) continue;
    steps_[kept] = steps_[i];
    evaluated_[kept] = evaluated_[i];
    place[i] = kept++;
  }
  if (kept == steps_.size()) return;
  steps_.resize(kept);
  evaluated_.resize(kept);
  for (auto& [name, column] : columns_) {
    size_t filled = 0;
    for (size_t i = 0; i < column.at.size(); ++i) {
      if (place[column.at[i]] == SIZE_MAX) continue;
      column.at[filled] = place[column.at[i]];
      column.values[filled++] = column.values[i];
    }
    column.at.resize(filled);
    column.values.resize(filled);
  }
  std::erase_if(columns_, [](const auto& entry) { return entry.second.at.empty(); });
}

Json SeriesTable::Shown() const {
  Json series = Json::object();
  for (const auto& [name, column] : columns_) {
    Json& shown = series[name] = {{"y", column.values}};
    if (column.at.size() == steps_.size()) continue;
    Json x = Json::array();
    for (const size_t at : column.at) x.push_back(steps_[at]);
    shown["x"] = std::move(x);
  }
  return {{"steps", steps_}, {"series", std::move(series)}};
}

Json ReadSeries(const std::filesystem::path& run, size_t limit, Notes* notes) {
  SeriesTable table;
  const bool found = ReadJsonLines(
      run / "metrics.jsonl", [&](const Json& line, const std::string& where) { table.Add(line, where); },
      notes);
  if (table.empty()) {
    notes->push_back(found ? "metrics.jsonl holds no step: no curves" : "no metrics.jsonl: no curves");
    return nullptr;
  }
  const size_t all = table.size();
  table.Thin(limit);
  if (table.size() < all)
    notes->push_back(fmt::format("{} steps: the curves show {} of them", all, table.size()));
  return table.Shown();
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
  return ShownPoints(records, limit, 1);
}

Json ShownPoints(const std::vector<PointsRecord>& records, size_t limit, size_t stride) {
  if (records.empty()) return nullptr;
  int64_t tokens = 0, outside = 0;
  size_t count = 0;
  for (const PointsRecord& record : records) {
    tokens += record.tokens * static_cast<int64_t>(stride);
    outside += record.outside * static_cast<int64_t>(stride);
    count += record.points.size();
  }
  const size_t one_in = (count + limit - 1) / limit;
  Json points = Json::array();
  size_t index = 0;
  for (const PointsRecord& record : records) {
    for (const TokenPoint& p : record.points) {
      if (index++ % one_in != 0) continue;
      points.push_back({record.step, p.ratio, p.divergence, p.direction, p.advantage, p.flags});
    }
  }
  return {{"tokens", tokens}, {"outside", outside}, {"points", std::move(points)}};
}

}  // namespace augur
