// Metrics over steps, as the page's charts take them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "metrics/json_lines.h"
#include "metrics/point_record.h"

namespace augur {

// Picks at most `limit` of rising steps: the first of every two, four, eight, ... of them. Picking among
// those that were picked before, and newer ones, leaves them as evenly spread.
class EvenSteps {
 public:
  EvenSteps(std::span<const int64_t> steps, size_t limit);

  // To be asked for one step after another.
  bool Stays(int64_t step);

 private:
  int64_t first_ = 0, stride_ = 1, last_ = -1;
};

// Metrics in columns.
class SeriesTable {
 public:
  // Takes a line of metrics.jsonl. A step that was there before takes the place of it and of all that
  // followed. Throws Error at `where` for a line that is none.
  void Add(const Json& line, const std::string& where);

  bool empty() const { return steps_.empty(); }
  size_t size() const { return steps_.size(); }
  int64_t last_step() const { return steps_.back(); }
  // The newest `count` values of a metric, in their order.
  std::vector<double> Newest(const std::string& name, size_t count) const;

  // Keeps at most `limit` steps with an evaluation and as many without, evenly spread, and the last.
  void Thin(size_t limit);

  // {"steps": [...], "series": {name: {"x": [...], "y": [...]}}}; a series without "x" has a value at every
  // step.
  Json Shown() const;

 private:
  struct Column {
    std::vector<size_t> at;  // places in steps_
    std::vector<double> values;
  };
  void Forget(int64_t step);

  std::vector<int64_t> steps_;
  std::vector<bool> evaluated_;
  std::map<std::string, Column> columns_;
};

// metrics.jsonl as SeriesTable::Shown gives it, thinned to `limit`. A value that is no finite number is left
// out. Null, with a note, where nothing is to be had.
Json ReadSeries(const std::filesystem::path& run, size_t limit, Notes* notes);

// points.jsonl as {"tokens": n, "outside": n, "points": [[step, ratio, divergence, direction, advantage,
// flags]]}, thinned evenly to at most `limit` points. Null where there is none.
Json ReadPoints(const std::filesystem::path& run, size_t limit, Notes* notes);
// The same of records that are one in `stride` of the steps.
Json ShownPoints(const std::vector<PointsRecord>& records, size_t limit, size_t stride);

}  // namespace augur
