// Rows of attention between memory and the blocks that are multiplied, by width of vectors: for
// attention_cpu.cc.
#pragma once

#include "kernels/simd/element.h"
#include "kernels/simd/lanes.h"

namespace augur {

template <typename T>
struct AttentionRows {
  // to = scale * from, of `width` floats with zeros behind the row's.
  void (*load)(const T* from, int dim, float scale, int width, float* to);
  // to = scale * from, rounded once.
  void (*store)(const float* from, int dim, float scale, T* to);
  float (*dot)(const T* a, const T* b, int dim);
};
AUGUR_LANES_DECLARE(AttentionRows<float>, kFloatAttentionRows);
AUGUR_LANES_DECLARE(AttentionRows<BFloat16>, kBf16AttentionRows);

template <typename T>
const AttentionRows<T>& AttentionRowsOf() {
  if constexpr (sizeof(T) == sizeof(float)) {
    return AUGUR_LANES_CHOICE(kFloatAttentionRows);
  } else {
    return AUGUR_LANES_CHOICE(kBf16AttentionRows);
  }
}

}  // namespace augur
