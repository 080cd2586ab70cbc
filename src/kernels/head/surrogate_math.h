// One token's loss and gradient parts, for CPU and CUDA alike.
#pragma once

#include <cmath>

#include "kernels/head/decide.h"
#include "kernels/head/decide_math.h"
#include "kernels/head/surrogate.h"
#include "mask/penalty.h"

namespace augur {

struct TokenTerms {
  double loss = 0;
  double at_sampled = 0;      // d loss / d log pi(sampled)
  double entropy_weight = 0;  // minus d loss / d entropy
};

AUGUR_HOST_DEVICE double CutRatio(const MaskRule& rule, double ratio) {
  return rule.ratio_cap > 0 && ratio > rule.ratio_cap ? rule.ratio_cap : ratio;
}

// x = log_ref - log_pi enters an exponential in k3; bounded as the ratio is. Not fmin and fmax, which would
// make a number of NaN.
AUGUR_HOST_DEVICE double BoundedLogRatio(double x) {
  return x < -kLogRatioLimit ? -kLogRatioLimit : x > kLogRatioLimit ? kLogRatioLimit : x;
}

AUGUR_HOST_DEVICE double EstimateKl(ReferenceKl kind, double log_ratio) {
  const double x = BoundedLogRatio(log_ratio);
  switch (kind) {
    case ReferenceKl::kNone:
      return 0;
    case ReferenceKl::kK1:
      return -x;
    case ReferenceKl::kK2:
      return x * x / 2;
    case ReferenceKl::kK3:
      return exp(x) - x - 1;
  }
  return 0;
}

// Its derivative by log_pi.
AUGUR_HOST_DEVICE double KlSlope(ReferenceKl kind, double log_ratio) {
  const double x = BoundedLogRatio(log_ratio);
  switch (kind) {
    case ReferenceKl::kNone:
      return 0;
    case ReferenceKl::kK1:
      return 1;
    case ReferenceKl::kK2:
      return -x;
    case ReferenceKl::kK3:
      return 1 - exp(x);
  }
  return 0;
}

template <typename T>
AUGUR_HOST_DEVICE TokenTerms TermsOf(const LossTerms& terms, const SurrogateInput<T>& in, int64_t t) {
  TokenTerms out;
  const double weight = in.weight[t];
  const uint8_t flags = in.flags[t];
  if (weight == 0 || (flags & kMissing)) return out;
  // Select, never multiply: a masked token's ratio may be infinite.
  const double advantage = in.advantage[t];
  if (advantage != 0 && (flags & kKept)) {
    const double step = weight * in.coefficient[t] * advantage;
    out.loss = -step;
    out.at_sampled = -step;
  }
  if (terms.rule.penalty != Penalty::kNone) {
    const int64_t sampled = t * in.columns;
    const double log_ratio = BoundedLogRatio(double{in.policy[sampled]} - double{in.behaviour[sampled]});
    out.loss += weight * PenaltyOf(terms.rule, log_ratio, in.ratio[t]);
    out.at_sampled += weight * PenaltySlope(terms.rule, log_ratio, in.ratio[t]);
  }
  if (terms.entropy_bonus != 0) {
    out.entropy_weight = weight * terms.entropy_bonus;
    out.loss -= out.entropy_weight * in.entropy[t];
  }
  if (terms.reference_kl != ReferenceKl::kNone) {
    const double log_ratio = double{in.reference_logprob[t]} - double{in.policy[t * in.columns]};
    out.loss += weight * terms.kl_coef * EstimateKl(terms.reference_kl, log_ratio);
    out.at_sampled += weight * terms.kl_coef * KlSlope(terms.reference_kl, log_ratio);
  }
  return out;
}

// Writes everything SurrogateOutput holds for token t.
template <typename T>
AUGUR_HOST_DEVICE void WriteTerms(const LossTerms& terms, const SurrogateInput<T>& in,
                                  const SurrogateOutput<T>& out, int64_t t) {
  const TokenTerms token = TermsOf(terms, in, t);
  out.loss[t] = static_cast<T>(token.loss);
  out.dense[t] = static_cast<T>(-token.at_sampled);
  out.entropy_weight[t] = static_cast<T>(token.entropy_weight);
}

// Adds token t to the sums of DecisionSum.
template <typename T>
AUGUR_HOST_DEVICE void AddToSums(const MaskRule& rule, const SurrogateInput<T>& in, const T* loss, int64_t t,
                                 double* sums) {
  if (in.weight[t] == 0) return;
  const uint8_t flags = in.flags[t];
  if (flags & kMissing) {
    sums[kSumMissing] += 1;
    return;
  }
  sums[kSumTokens] += 1;
  sums[kSumOutside] += (flags & kOutside) != 0;
  sums[kSumMasked] += (flags & kKept) == 0;
  sums[kSumDisagree] += (flags & kDisagrees) != 0;
  sums[kSumMassClamped] += (flags & kMassClamped) != 0;
  sums[kSumCapped] += (flags & kCapped) != 0;
  sums[kSumDivergence] += in.divergence[t];
  sums[kSumRatio] += in.ratio[t];
  sums[kSumCutRatio] += CutRatio(rule, in.ratio[t]);
  sums[kSumLogRatio] += static_cast<double>(in.behaviour[t * in.columns]) - in.policy[t * in.columns];
  if (in.entropy != nullptr) sums[kSumEntropy] += in.entropy[t];
  sums[kSumLoss] += loss[t];
}

}  // namespace augur
