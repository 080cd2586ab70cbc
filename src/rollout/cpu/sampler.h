// From hidden states to drawn tokens on the CPU.
#pragma once

#include <span>
#include <vector>

#include "kernels/decode/sample_support.h"
#include "rollout/cpu/weights.h"

namespace augur {

class CpuSampler {
 public:
  CpuSampler(const CpuWeights& weights, RolloutPrecision precision);

  // hidden [rows, hidden], after the last norm; draws ascend by row. settings.stride is not looked at.
  void Sample(const float* hidden, std::span<const SampleDraw> draws, SampleSettings settings,
              const SampleResults& out);

 private:
  const CpuWeights& weights_;
  GemmRows rows_;
  std::vector<float> logits_, row_;
  int64_t stride_;
};

}  // namespace augur
