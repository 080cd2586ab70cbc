// Moving kernel elements in and out of short vectors.
#pragma once

#include "kernels/element.h"
#include "kernels/vector_math.h"

namespace augur {

// The first `count` (1 to kFloats) elements at `from`, then zeros.
template <typename T>
inline Floats LoadLanes(const T* from, int64_t count) {
  Floats lanes{};
  if (count >= kFloats) {
    for (int j = 0; j < kFloats; ++j) lanes[j] = static_cast<float>(from[j]);
  } else {
    for (int j = 0; j < count; ++j) lanes[j] = static_cast<float>(from[j]);
  }
  return lanes;
}

// Writes the first `count` lanes (at most kFloats), rounded to T.
template <typename T>
inline void StoreLanes(Floats lanes, T* to, int64_t count) {
  if (count >= kFloats) {
    for (int j = 0; j < kFloats; ++j) to[j] = FromFloat<T>(lanes[j]);
  } else {
    for (int j = 0; j < count; ++j) to[j] = FromFloat<T>(lanes[j]);
  }
}

}  // namespace augur
