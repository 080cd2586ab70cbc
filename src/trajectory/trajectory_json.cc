#include "trajectory/trajectory_json.h"

#include <cstddef>
#include <vector>

namespace augur {
namespace {

// [T, columns] as a list of rows; -inf becomes null.
template <typename T>
TrajectoryJson Rows(const std::vector<T>& values, int64_t columns) {
  TrajectoryJson rows = TrajectoryJson::array();
  for (size_t i = 0; i < values.size(); i += static_cast<size_t>(columns)) {
    TrajectoryJson row = TrajectoryJson::array();
    for (int64_t c = 0; c < columns; ++c) row.push_back(values[i + static_cast<size_t>(c)]);
    rows.push_back(std::move(row));
  }
  return rows;
}

TrajectoryJson SpansJson(const Trajectory& trajectory) {
  TrajectoryJson spans = TrajectoryJson::array();
  for (const Span& span : trajectory.Spans()) {
    spans.push_back({span.begin, span.end, SpanSource(span), span.weight_version});
  }
  return spans;
}

}  // namespace

TrajectoryJson ToJson(const Trajectory& trajectory) {
  TrajectoryJson line = {{"prompt", trajectory.prompt},
                         {"sample", trajectory.sample},
                         {"prompt_tokens", trajectory.prompt_tokens},
                         {"tokens", trajectory.tokens},
                         {"spans", SpansJson(trajectory)},
                         {"logprobs", trajectory.logprobs}};
  if (trajectory.support.columns > 0) {
    line["support_ids"] = Rows(trajectory.support.ids, trajectory.support.columns);
    line["support_logprobs"] = Rows(trajectory.support.logprobs, trajectory.support.columns);
  }
  line["temperature"] = trajectory.temperature;
  line["weight_version"] = trajectory.weight_version;
  line["finish_reason"] = std::string(FinishReasonName(trajectory.finish));
  if (trajectory.finish == FinishReason::kFailed) line["error"] = trajectory.error;
  return line;
}

}  // namespace augur
