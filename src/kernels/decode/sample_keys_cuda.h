// What the sampling kernels share: tokens ordered by likelihood as whole numbers. For .cu files only.
#pragma once

#include <cstdint>

#include "kernels/cuda_rows.h"
#include "kernels/decode/sample_support.h"

namespace augur {

inline constexpr int kSamplePart = 2048;  // tokens in a row that one warp sweeps
inline constexpr int kSampleWarps = 8;    // parts that one block sweeps
inline constexpr int kMostParts = 256;    // of a row
inline constexpr int kMostKept = 64;      // of the most likely tokens, that the fast kernels find

// A scaled logit and its token as one number: greater is more likely, ties fall to the lower id. 0 stands for
// a token that cannot be drawn.
using SampleKey = unsigned long long;

__device__ __forceinline__ SampleKey MakeSampleKey(float z, int id) {
  if (z == -INFINITY) return 0;
  const uint32_t bits = __float_as_uint(z + 0.0f);  // -0 and 0 are alike
  const uint32_t ordered = bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
  return static_cast<SampleKey>(ordered) << 32 | (0xffffffffu - static_cast<uint32_t>(id));
}
__device__ __forceinline__ float ValueOfKey(SampleKey key) {
  const auto ordered = static_cast<uint32_t>(key >> 32);
  return __uint_as_float(ordered ^ (ordered >> 31 ? 0x80000000u : 0xffffffffu));
}
__device__ __forceinline__ int TokenOfKey(SampleKey key) {
  return static_cast<int>(0xffffffffu - static_cast<uint32_t>(key));
}

// exp(z - most), 0 where that is negligible.
__device__ __forceinline__ float SampleWeight(float z, float most) {
  const float shifted = z - most;
  return shifted >= -87.0f ? expf(shifted) : 0.0f;
}

// What SampleSettings' own members say, for device code.
__host__ __device__ __forceinline__ bool Truncates(const SampleSettings& settings) {
  return settings.top_k > 0 || settings.top_p < 1 || settings.min_p > 0;
}
__host__ __device__ __forceinline__ int64_t ColumnsOf(const SampleSettings& settings) {
  return settings.support > 0 ? settings.support + 1 : 0;
}

// The least scaled logit that min_p leaves.
__device__ __forceinline__ float SampleFloor(float min_p, float most) {
  return min_p > 0 ? most + logf(min_p) - 1e-6f * fabsf(most) : -INFINITY;
}

// One part of a row: its largest scaled logit and the sum of exp(z - most). NaN or infinity in the logits
// makes `most` NaN.
struct SamplePart {
  float most;
  float sum;
};

// Where the kernels of one call leave results for each other.
struct SampleWorkspace {
  int parts;         // of a row
  int lists;         // of a row: one for kSampleWarps parts
  int keep;          // most likely tokens kept, at most kMostKept
  SamplePart* sums;  // [draws, parts]
  SampleKey* best;   // [draws, lists, keep], falling, 0 where there are fewer
  SampleKey* drawn;  // [draws], where tokens are drawn under truncations
  SampleKey* large;  // [draws, support], where the support is larger than kMostKept
};

// A row as its parts make it up.
struct SampleRow {
  float most;                  // NaN or an infinity where the row is not finite
  double sum;                  // of exp(z - most)
  double weights[kMostParts];  // its shares by part
};

// By the first warp of a block; the others wait for it behind a barrier. Beyond `count` the weights are 0.
__device__ __forceinline__ void SummarizeRow(const SamplePart* parts, int count, SampleRow* row) {
  constexpr int kPer = kMostParts / 32;
  if (threadIdx.x >= 32) return;
  const int lane = threadIdx.x;
  SamplePart mine[kPer];
  float most = -INFINITY;
  bool nan = false;
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    mine[i] = lane + 32 * i < count ? parts[lane + 32 * i] : SamplePart{-INFINITY, 0.0f};
    nan |= mine[i].most != mine[i].most;
    most = fmaxf(most, mine[i].most);
  }
  most = WarpMax(most);
  if (__any_sync(0xffffffffu, nan)) most = NAN;
  double sum = 0;
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    const double share = mine[i].sum > 0 ? mine[i].sum * exp(static_cast<double>(mine[i].most) - most) : 0.0;
    row->weights[lane + 32 * i] = share;
    sum += share;
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  if (lane != 0) return;
  row->most = most;
  row->sum = sum;
}

// Draws under truncations into workspace.drawn; needs the sweep's parts.
void DrawTruncated(ElementType type, const void* logits, const SampleDraw* draws, int64_t count,
                   const SampleSettings& settings, const SampleWorkspace& workspace, cudaStream_t stream);
// Writes supports larger than kMostKept; needs the sweep's parts and the tokens drawn.
void WriteLargeSupport(ElementType type, const void* logits, const SampleDraw* draws, int64_t count,
                       const SampleSettings& settings, const SampleResults& out,
                       const SampleWorkspace& workspace, cudaStream_t stream);

}  // namespace augur
