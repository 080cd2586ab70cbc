// The sweeps of sampling over a block of logits, by width of vectors: for sample_support_cpu.cc.
#pragma once

#include "kernels/simd/element.h"
#include "kernels/simd/lanes.h"

namespace augur {

inline constexpr int kSampleBlock = 1024;  // logits that stay in the first-level cache
inline constexpr int kSampleStep = 64;     // looked at together, so that nothing waits for the step before

// Blocks hold at most kSampleBlock logits and are padded with -infinity to whole steps.
struct SampleKernels {
  void (*widen)(const BFloat16* from, int count, float* to);
  // The largest logit; where there is a NaN perhaps that.
  float (*largest)(const float* block, int count);
  // The sum of exp((x - most) * scale) where `most` is the largest; NaN where a logit is NaN or infinity.
  // What is negligible against the largest one's 1, and -infinity, counts as e^-87.
  float (*sum)(const float* block, int count, float most, float scale);
  // exp((x - most) * scale), 0 below e^-87, to whole steps.
  void (*weights)(const float* block, int count, float most, float scale, float* to);
  // The first index from `begin` on whose logit is above `bound`; `count` or more if there is none.
  int (*next_above)(const float* block, int begin, int count, float bound);
};
AUGUR_LANES_DECLARE(SampleKernels, kSampling);

}  // namespace augur
