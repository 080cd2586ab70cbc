#include "kernels/decode/sample_kernels.h"
#include "kernels/simd/float_lanes.h"

namespace augur {
inline namespace AUGUR_LANES {
namespace {

constexpr int kVectors = 4;  // whose sums are under way at once
constexpr int kStride = kVectors * kFloats;
static_assert(kSampleStep % kStride == 0);

void Widen(const BFloat16* from, int count, float* to) {
  int i = 0;
  for (; i + kFloats <= count; i += kFloats) StoreFloats(LoadAll(from + i), to + i);
  for (; i < count; ++i) to[i] = from[i];
}

float Largest(const float* block, int count) {
  Floats most[kVectors];
  for (int j = 0; j < kVectors; ++j) most[j] = LoadFloats(block + j * kFloats);
  for (int i = kStride; i < count; i += kStride) {
    for (int j = 0; j < kVectors; ++j) most[j] = Larger(most[j], LoadFloats(block + i + j * kFloats));
  }
  const Floats all = Larger(Larger(most[0], most[1]), Larger(most[2], most[3]));
  return LargestOf(all);
}

float Sum(const float* block, int count, float most, float scale) {
  Floats sums[kVectors] = {};
  for (int i = 0; i < count; i += kStride) {
    for (int j = 0; j < kVectors; ++j) {
      const Floats shifted = (LoadFloats(block + i + j * kFloats) - most) * scale;
      sums[j] += BoundedExp(AtLeast(shifted, -87.0f));
    }
  }
  return SumOf((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

void Weights(const float* block, int count, float most, float scale, float* to) {
  for (int i = 0; i < count; i += kFloats) {
    const Floats shifted = (LoadFloats(block + i) - most) * scale;
    const Floats weight = BoundedExp(AtLeast(shifted, -87.0f));
    StoreFloats(shifted >= -87.0f ? weight : Floats{}, to + i);
  }
}

int NextAbove(const float* block, int begin, int count, float bound) {
  int i = begin;
  for (; i < count && i % kStride != 0; ++i) {
    if (block[i] > bound) return i;
  }
  for (; i < count; i += kStride) {
    Ints above[kVectors];
    for (int j = 0; j < kVectors; ++j) above[j] = LoadFloats(block + i + j * kFloats) > bound;
    if (!AnyOf((above[0] | above[1]) | (above[2] | above[3]))) continue;
    while (!(block[i] > bound)) ++i;
    return i;
  }
  return count;
}

}  // namespace
}  // namespace AUGUR_LANES

extern const SampleKernels AUGUR_LANES_TABLE(kSampling) = {Widen, Largest, Sum, Weights, NextAbove};

}  // namespace augur
