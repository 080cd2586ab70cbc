// What happens to single rows between the products of a decoder layer, for generation on the CPU. Values are
// held as floats; T says what they are rounded to, at the places where the training forward rounds.
#pragma once

#include <cstdint>

#include "kernels/simd/element.h"

namespace augur {

// x += added (null for none), then y = RMSNorm(x) * weight. All [width].
template <typename T>
void AddNormRowCpu(int64_t width, const float* added, const float* weight, float eps, float* x, float* y);

// Query and key heads [heads + kv_heads, head_dim] in place: RMSNorm per head where the norms are not null,
// then rotation by the position's cosines and sines [head_dim / 2].
struct RotaryRow {
  int heads, kv_heads, head_dim;
  const float* q_norm;
  const float* k_norm;
  float eps;
};
template <typename T>
void RotateRowCpu(const RotaryRow& shape, const float* cos, const float* sin, float* qk);

// out [width] = silu(gate) * up for gate_up [2 * width]; out may be gate_up.
template <typename T>
void SwigluRowCpu(int64_t width, const float* gate_up, float* out);

// x [width] rounded to T.
template <typename T>
void RoundRowCpu(int64_t width, float* x);
// x += added. Both [width].
template <typename T>
void AddRowCpu(int64_t width, const float* added, float* x);
// x += weight * added, the product rounded, too.
template <typename T>
void AddWeightedRowCpu(int64_t width, const float* added, float weight, float* x);

// Bfloat16 as floats.
void WidenRowCpu(int64_t width, const BFloat16* from, float* to);

}  // namespace augur
