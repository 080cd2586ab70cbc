#include "rollout/cpu/sampler.h"

#include <algorithm>

namespace augur {
namespace {

// Rows whose logits are computed and looked at together, so that they stay in cache.
constexpr int32_t kHeadRows = 40;

}  // namespace

CpuSampler::CpuSampler(const CpuWeights& weights, RolloutPrecision precision)
    : weights_(weights),
      rows_(HeadFormat(precision)),
      // Not a power of two, or a column's logits of all rows would fall into one cache set.
      stride_(weights.head().padded_outputs() + 48) {}

void CpuSampler::Sample(const float* hidden, std::span<const SampleDraw> draws, SampleSettings settings,
                        const SampleResults& out) {
  settings.stride = stride_;
  const int64_t columns = settings.columns(), width = weights_.head().width();
  row_.resize(width);
  std::vector<SampleDraw> local;
  for (size_t begin = 0, end = 0; begin < draws.size(); begin = end) {
    const int32_t first = draws[begin].row;
    local.clear();
    for (; end < draws.size() && draws[end].row < first + kHeadRows; ++end) {
      local.push_back(draws[end]);
      local.back().row -= first;
    }
    const int64_t rows = local.back().row + 1;
    rows_.Resize(rows, width);
    for (int64_t r = 0; r < rows; ++r) {
      std::copy_n(hidden + (first + r) * width, width, row_.data());
      rows_.SetRow(r, row_.data());
    }
    if (logits_.size() < static_cast<size_t>(rows * stride_)) logits_.resize(rows * stride_);
    PackedGemm(rows_, weights_.head(), nullptr, false, logits_.data(), stride_);
    const auto offset = static_cast<int64_t>(begin);
    SampleSupportCpu(logits_.data(), local.data(), static_cast<int64_t>(local.size()), settings,
                     {out.tokens + offset, out.logprobs + offset, out.support_ids + offset * columns,
                      out.support_logprobs + offset * columns, out.finite + offset});
  }
}

}  // namespace augur
