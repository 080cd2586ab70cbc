// From decisions to the loss: each token's contribution, and its gradient in the parts that RowGradient
// takes.
#pragma once

#include <cstdint>

#include "mask/rule.h"

namespace augur {

// How the distance to a reference policy is estimated from the sampled token, with x = log ref - log pi:
// k1 = -x, k2 = x^2 / 2, k3 = e^x - x - 1.
enum class ReferenceKl { kNone, kK1, kK2, kK3 };

template <typename T>
struct SurrogateInput {
  const T* behaviour = nullptr;  // [tokens, columns]
  const T* policy = nullptr;     // [tokens, columns]
  const T* advantage = nullptr;  // [tokens]
  const T* weight = nullptr;     // [tokens]; a token of weight 0 contributes nothing, whatever it holds
  const T* ratio = nullptr;      // [tokens] from Decide, as the next two
  const T* divergence = nullptr;
  const uint8_t* flags = nullptr;
  const T* entropy = nullptr;            // [tokens], read where entropy_bonus is not 0
  const T* reference_logprob = nullptr;  // [tokens], read where reference_kl is not kNone
  int64_t tokens = 0;
  int columns = 0;
  double entropy_bonus = 0;
  double kl_coef = 0;
  ReferenceKl reference_kl = ReferenceKl::kNone;
};

// The loss is the sum of loss[t]: -weight * ratio * advantage for a kept token, plus the entropy and
// reference terms.
template <typename T>
struct SurrogateOutput {
  T* loss = nullptr;            // [tokens]
  T* dense = nullptr;           // [tokens]
  T* entropy_weight = nullptr;  // [tokens]
  T* sparse = nullptr;          // [tokens, columns]
};

template <typename T>
void SurrogateCpu(const MaskRule& rule, const SurrogateInput<T>& in, const SurrogateOutput<T>& out);
template <typename T>
void SurrogateCuda(const MaskRule& rule, const SurrogateInput<T>& in, const SurrogateOutput<T>& out,
                   void* stream);

// Sums over the counted tokens: those of non-zero weight, missing ones apart.
enum DecisionSum {
  kSumTokens,
  kSumMissing,
  kSumOutside,
  kSumMasked,
  kSumDisagree,
  kSumMassClamped,
  kSumCapped,
  kSumDivergence,
  kSumRatio,
  kSumCutRatio,  // the ratio as it enters the loss, after the cap
  kSumLogRatio,  // log mu - log pi of the sampled token: its mean estimates KL(mu || pi)
  kSumEntropy,
  kSumLoss,
  kDecisionSums
};

// Writes kDecisionSums doubles, always in the same order of addition.
template <typename T>
void DecisionSumsCpu(const MaskRule& rule, const SurrogateInput<T>& in, const T* loss, double* sums);
template <typename T>
void DecisionSumsCuda(const MaskRule& rule, const SurrogateInput<T>& in, const T* loss, double* sums,
                      void* stream);

}  // namespace augur
