// From decisions to the loss: each token's contribution, and its gradient in the parts that RowGradient
// takes.
#pragma once

#include <cstdint>

#include "mask/loss_terms.h"

namespace augur {

template <typename T>
struct SurrogateInput {
  const T* behaviour = nullptr;  // [tokens, columns]
  const T* policy = nullptr;     // [tokens, columns]
  const T* advantage = nullptr;  // [tokens]
  const T* weight = nullptr;     // [tokens]; a token of weight 0 contributes nothing, whatever it holds
  const T* ratio = nullptr;      // [tokens] from Decide, as the next three
  const T* divergence = nullptr;
  const T* coefficient = nullptr;
  const uint8_t* flags = nullptr;
  const T* entropy = nullptr;            // [tokens], read where entropy_bonus is not 0
  const T* reference_logprob = nullptr;  // [tokens], read where reference_kl is not kNone
  int64_t tokens = 0;
  int columns = 0;
};

// The loss is the sum of loss[t]. RowGradient takes the other two, without a sparse part.
template <typename T>
struct SurrogateOutput {
  T* loss = nullptr;            // [tokens]
  T* dense = nullptr;           // [tokens]
  T* entropy_weight = nullptr;  // [tokens]
};

template <typename T>
void SurrogateCpu(const LossTerms& terms, const SurrogateInput<T>& in, const SurrogateOutput<T>& out);
template <typename T>
void SurrogateCuda(const LossTerms& terms, const SurrogateInput<T>& in, const SurrogateOutput<T>& out,
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
