// A mixture of experts over the few tokens of a decode step, on a GPU: tokens are routed, and each expert
// that is chosen multiplies the tokens that chose it, without sorting them and without the host. bfloat16, or
// e4m3 rows with a scale each. A token's results do not depend on the others.
#pragma once

#include <cstdint>

#include "kernels/simd/element.h"

namespace augur {

inline constexpr int64_t kMostExpertTokens = 512;
inline constexpr int kMostExperts = 512;
inline constexpr int kMostExpertsPerToken = 32;

// Which experts a token goes through, and with what weight.
struct ExpertRoutes {
  int64_t tokens = 0;  // up to kMostExpertTokens
  int experts = 0, per_token = 0;
  int32_t* chosen = nullptr;    // [tokens, per_token]: the most probable first
  BFloat16* weights = nullptr;  // [tokens, per_token]
  // [experts, ExpertPlacesStride(tokens)]: 1 + the place of the expert among a token's choices, 0 for none.
  uint8_t* places = nullptr;
  // Where not null, `chosen` once more as bytes, a token's so many behind those of the token before.
  uint8_t* record = nullptr;
  int64_t record_stride = 0;
};

inline int64_t ExpertPlacesStride(int64_t tokens) { return (tokens + 31) / 32 * 32; }

// Whether the current GPU has these kernels: Hopper's tensor cores.
bool HasExpertKernelsCuda();

// Softmax of the logits [tokens, experts] in float32, the most probable per_token, with `normalise` their
// probabilities divided by their sum. Of equal ones the lower expert comes first.
void RouteTokensCuda(const BFloat16* logits, bool normalise, const ExpertRoutes& routes, void* stream);

// y = x W^T for every expert and the tokens that chose it. Widths are multiples of 8, in e4m3 of 16.
struct ExpertProduct {
  int in = 0, out = 0;
  // [tokens, in] with `by_token`, else [tokens, per_token, in]: a row for each choice.
  bool by_token = false;
  const void* x = nullptr;
  const void* weights = nullptr;        // [experts, out, in]
  const float* x_scale = nullptr;       // by row of x; both given: x and weights are e4m3
  const float* weight_scale = nullptr;  // [experts, out]
  // [tokens, per_token, out]; with `gated`, [tokens, per_token, out / 2]: SwiGLU of gate and up, the halves.
  bool gated = false;
  BFloat16* y = nullptr;
};
void ExpertProductCuda(const ExpertRoutes& routes, const ExpertProduct& product, void* stream);

// out [tokens, width] = the sum over a token's choices of weight * y [tokens, per_token, width]; width is a
// multiple of 8.
void MixExpertsCuda(const ExpertRoutes& routes, int64_t width, const BFloat16* y, BFloat16* out,
                    void* stream);

}  // namespace augur
