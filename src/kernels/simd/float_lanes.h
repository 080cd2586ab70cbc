// Moving kernel elements in and out of short vectors.
#pragma once

#include <cstring>

#include "kernels/simd/element.h"
#include "kernels/simd/rounded_lanes.h"

namespace augur {
inline namespace AUGUR_LANES {

// kFloats elements, in one load.
inline Floats LoadAll(const float* from) { return LoadFloats(from); }
inline Floats LoadAll(const BFloat16* from) {
#if defined(__ARM_NEON)  // g++ would take the lanes one by one
  return (Floats)vshll_n_u16(vld1_u16(&from->bits), 16);
#else
  typedef uint32_t Words __attribute__((vector_size(4 * kFloats)));
  Halves halves;
  std::memcpy(&halves, from, sizeof(halves));
  return (Floats)(__builtin_convertvector(halves, Words) << 16);
#endif
}
inline void StoreAll(Floats lanes, float* to) { StoreFloats(lanes, to); }
inline void StoreAll(Floats lanes, BFloat16* to) { StoreBf16(lanes, &to->bits); }

// The first `count` (1 to kFloats) elements at `from`, then zeros.
template <typename T>
inline Floats LoadLanes(const T* from, int64_t count) {
  if (count >= kFloats) return LoadAll(from);
  Floats lanes{};
  for (int j = 0; j < count; ++j) lanes[j] = static_cast<float>(from[j]);
  return lanes;
}

// Writes the first `count` lanes (at most kFloats), rounded to T.
template <typename T>
inline void StoreLanes(Floats lanes, T* to, int64_t count) {
  if (count >= kFloats) return StoreAll(lanes, to);
  for (int j = 0; j < count; ++j) to[j] = FromFloat<T>(lanes[j]);
}

}  // namespace AUGUR_LANES
}  // namespace augur
