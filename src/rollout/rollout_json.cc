#include "rollout/rollout_json.h"

#include <cstddef>
#include <vector>

namespace augur {
namespace {

// [T, columns] as a list of rows; -inf becomes null.
template <typename T>
RolloutJson Rows(const std::vector<T>& values, int64_t columns) {
  RolloutJson rows = RolloutJson::array();
  for (size_t i = 0; i < values.size(); i += static_cast<size_t>(columns)) {
    RolloutJson row = RolloutJson::array();
    for (int64_t c = 0; c < columns; ++c) row.push_back(values[i + static_cast<size_t>(c)]);
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

RolloutJson ToJson(const Rollout& rollout) {
  RolloutJson line = {{"prompt", rollout.prompt},
                      {"sample", rollout.sample},
                      {"prompt_tokens", rollout.prompt_tokens},
                      {"tokens", rollout.tokens},
                      {"logprobs", rollout.logprobs}};
  if (rollout.support.columns > 0) {
    line["support_ids"] = Rows(rollout.support.ids, rollout.support.columns);
    line["support_logprobs"] = Rows(rollout.support.logprobs, rollout.support.columns);
  }
  line["temperature"] = rollout.temperature;
  line["weight_version"] = rollout.weight_version;
  line["finish_reason"] = std::string(FinishReasonName(rollout.finish));
  if (rollout.finish == FinishReason::kFailed) line["error"] = rollout.error;
  return line;
}

}  // namespace augur
