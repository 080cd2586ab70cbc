#include "rollout/growth.h"

#include <algorithm>

namespace augur {
namespace {

constexpr int64_t kMostStages = 64;

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

ResponseGrowth::ResponseGrowth(int64_t limit, int64_t page_tokens)
    : stage_tokens_(std::max(page_tokens, DivideUp(limit, kMostStages))),
      page_tokens_(page_tokens),
      came_(DivideUp(limit, stage_tokens_), 0),
      ended_(came_.size(), 0) {}

int64_t ResponseGrowth::StageOf(int64_t tokens) const {
  return std::clamp<int64_t>((tokens - 1) / stage_tokens_, 0, stages() - 1);
}

double ResponseGrowth::PagesAt(int64_t stage) const {
  // A response begins within a page, on average in its middle.
  return static_cast<double>((stage + 1) * stage_tokens_) / static_cast<double>(page_tokens_) + 0.5;
}

std::vector<double> ResponseGrowth::Survival() const {
  std::vector<double> survival;
  double share = 1;
  for (int64_t stage = 0; stage < stages(); ++stage) {
    survival.push_back(share);
    // Of equally likely lengths; counts as one response.
    const double prior = 1 / static_cast<double>(stages() - stage);
    share *= 1 - (static_cast<double>(ended_[stage]) + prior) / (static_cast<double>(came_[stage]) + 1);
  }
  return survival;
}

PageForecast::PageForecast(const ResponseGrowth& growth)
    : growth_(growth), survival_(growth.Survival()), pages_(growth.stages(), 0) {}

void PageForecast::Add(int64_t tokens) {
  const int64_t now = growth_.StageOf(tokens);
  for (int64_t stage = now; stage < growth_.stages(); ++stage) {
    // All that came here may have ended; a response that is here counts in full.
    const double goes_on = survival_[now] > 0 ? survival_[stage] / survival_[now] : stage == now ? 1 : 0;
    pages_[stage - now] += goes_on * growth_.PagesAt(stage);
  }
}

double PageForecast::most() const { return std::ranges::max(pages_); }

}  // namespace augur
