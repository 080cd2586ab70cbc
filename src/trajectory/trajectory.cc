#include "trajectory/trajectory.h"

#include "base/error.h"

namespace augur {

std::string_view FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEos:
      return "eos";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kStopText:
      return "stop";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kFailed:
      return "failed";
  }
  return "";
}

std::string_view SpanSource(const Span& span) { return span.sampled ? "sampled" : "observed"; }

std::vector<Span> Trajectory::Spans() const {
  if (!spans.empty() || tokens.empty()) return spans;
  return {{0, static_cast<int64_t>(tokens.size()), true, weight_version}};
}

int64_t Trajectory::sampled_tokens() const {
  if (spans.empty()) return static_cast<int64_t>(tokens.size());
  int64_t count = 0;
  for (const Span& span : spans) count += span.sampled ? span.end - span.begin : 0;
  return count;
}

std::vector<int64_t> Trajectory::SampledPlaces() const {
  std::vector<int64_t> places;
  for (const Span& span : Spans()) {
    for (int64_t t = span.begin; span.sampled && t < span.end; ++t) places.push_back(t);
  }
  return places;
}

void CheckTrajectory(const Trajectory& trajectory, std::string_view where) {
  const auto fail = [&](std::string_view what) {
    throw Error(where, what, "it was damaged, or made by another version");
  };
  if (trajectory.finish < FinishReason::kEos || trajectory.finish > FinishReason::kFailed) {
    fail("ends for no known reason");
  }
  int64_t end = 0;
  for (const Span& span : trajectory.spans) {
    if (span.begin != end || span.end <= span.begin) fail("has spans that do not follow each other");
    end = span.end;
  }
  if (!trajectory.spans.empty() && end != static_cast<int64_t>(trajectory.tokens.size())) {
    fail("has spans of more or fewer tokens than it holds");
  }
  const auto sampled = static_cast<uint64_t>(trajectory.sampled_tokens());
  const RecordedSupport& support = trajectory.support;
  // Divided, as a product may overflow.
  const auto fits = [&](size_t size) {
    const auto columns = static_cast<uint64_t>(support.columns);
    return columns == 0 || sampled == 0 ? size == 0 : size % columns == 0 && size / columns == sampled;
  };
  if (support.columns < 0 || !fits(support.ids.size()) || !fits(support.logprobs.size())) {
    fail("has a support of more or fewer tokens than were sampled");
  }
}

}  // namespace augur
