// One token's loss and gradient parts, for CPU and CUDA alike.
#pragma once

#include <cmath>

#include "kernels/head/decide.h"
#include "kernels/head/decide_math.h"
#include "kernels/head/surrogate.h"

namespace augur {

struct TokenTerms {
  double loss = 0;
  double at_sampled = 0;      // d loss / d log pi(sampled)
  double entropy_weight = 0;  // minus d loss / d entropy
  bool restores = false;
  double restore_scale = 0;  // restore_strength * |weight * ratio * advantage|
};

AUGUR_HOST_DEVICE double CutRatio(const MaskRule& rule, double ratio) {
  return rule.ratio_cap > 0 && ratio > rule.ratio_cap ? rule.ratio_cap : ratio;
}

// log_ref - log_pi enters an exponential in k3; bounded as the ratio is.
AUGUR_HOST_DEVICE void AddReferenceTerm(ReferenceKl kind, double weight, double log_pi, double log_ref,
                                        TokenTerms* terms) {
  const double x = fmin(fmax(log_ref - log_pi, -kLogRatioLimit), kLogRatioLimit);
  switch (kind) {
    case ReferenceKl::kNone:
      return;
    case ReferenceKl::kK1:
      terms->loss -= weight * x;
      terms->at_sampled += weight;
      return;
    case ReferenceKl::kK2:
      terms->loss += weight * x * x / 2;
      terms->at_sampled -= weight * x;
      return;
    case ReferenceKl::kK3:
      terms->loss += weight * (exp(x) - x - 1);
      terms->at_sampled += weight * (1 - exp(x));
      return;
  }
}

template <typename T>
AUGUR_HOST_DEVICE TokenTerms TermsOf(const MaskRule& rule, const SurrogateInput<T>& in, int64_t t) {
  TokenTerms terms;
  const double weight = in.weight[t];
  const uint8_t flags = in.flags[t];
  if (weight == 0 || (flags & kMissing)) return terms;
  // Select, never multiply: a masked token's ratio may be infinite.
  const double advantage = in.advantage[t];
  if (advantage != 0) {
    const double step = weight * CutRatio(rule, in.ratio[t]) * advantage;
    if (flags & kKept) {
      terms.loss = -step;
      terms.at_sampled = -step;
    } else if (rule.action == Action::kRestore) {
      terms.restores = true;
      terms.restore_scale = rule.restore_strength * fabs(step);
      terms.loss = terms.restore_scale * in.divergence[t];
    }
  }
  if (in.entropy_bonus != 0) {
    terms.entropy_weight = weight * in.entropy_bonus;
    terms.loss -= terms.entropy_weight * in.entropy[t];
  }
  if (in.reference_kl != ReferenceKl::kNone) {
    AddReferenceTerm(in.reference_kl, weight * in.reference_weight, in.policy[t * in.columns],
                     in.reference_logprob[t], &terms);
  }
  return terms;
}

// The gradient of the divergence over the support in the logits z: dense * pi_j everywhere plus sparse[c] at
// the support. Both are scaled by terms.restore_scale and added to what stands in dense and sparse.
template <typename T>
AUGUR_HOST_DEVICE void AddRestoreGradient(const MaskRule& rule, const SurrogateInput<T>& in, int64_t t,
                                          double scale, double* dense, T* sparse) {
  const T* behaviour = in.behaviour + t * in.columns;
  const T* policy = in.policy + t * in.columns;
  const int columns = rule.support == Support::kBinary ? 1 : in.columns;
  double count = 0, mu_sum = 0, pi_folded = 0, signed_pi = 0;
  for (int c = 0; c < in.columns; ++c) {
    if (behaviour[c] == static_cast<T>(-INFINITY)) continue;
    const double mu = exp(static_cast<double>(behaviour[c])), pi = exp(static_cast<double>(policy[c]));
    if (c >= columns) {
      pi_folded += pi;
      continue;
    }
    count += 1;
    mu_sum += mu;
    signed_pi += SignOf(mu - pi) * pi;
  }
  const bool has_tail = static_cast<double>(in.vocab_size) > count;
  const double mu_tail = has_tail ? fmax(1 - mu_sum, 0.0) : 0.0;
  const double pi_tail = has_tail ? in.policy_tail[t] + pi_folded : 0.0;
  constexpr double kSmallestNormalFloat = 1.17549435082228750797e-38;
  const double tail_ratio = pi_tail > kSmallestNormalFloat ? mu_tail / pi_tail : 0.0;
  const double tail_sign = SignOf(mu_tail - pi_tail);
  const bool tv = rule.proximity == Proximity::kTv;
  // Where the tail's logarithm is floored it no longer moves: only the head's mass pulls.
  const double kl_mass = pi_tail > kSmallestNormalFloat ? mu_sum + mu_tail : mu_sum;
  *dense += scale * (tv ? (signed_pi + tail_sign * pi_tail - tail_sign) / 2 : kl_mass - tail_ratio);
  for (int c = 0; c < columns; ++c) {
    if (behaviour[c] == static_cast<T>(-INFINITY)) continue;
    const double mu = exp(static_cast<double>(behaviour[c])), pi = exp(static_cast<double>(policy[c]));
    const double here = tv ? -(SignOf(mu - pi) - tail_sign) * pi / 2 : pi * tail_ratio - mu;
    sparse[c] = static_cast<T>(sparse[c] + scale * here);
  }
}

// Writes everything SurrogateOutput holds for token t.
template <typename T>
AUGUR_HOST_DEVICE void WriteTerms(const MaskRule& rule, const SurrogateInput<T>& in,
                                  const SurrogateOutput<T>& out, int64_t t) {
  const TokenTerms terms = TermsOf(rule, in, t);
  T* sparse = out.sparse + t * in.columns;
  for (int c = 0; c < in.columns; ++c) sparse[c] = 0;
  double dense = -terms.at_sampled;
  if (terms.restores) AddRestoreGradient(rule, in, t, terms.restore_scale, &dense, sparse);
  if (terms.at_sampled != 0) sparse[0] = static_cast<T>(sparse[0] + terms.at_sampled);
  out.loss[t] = static_cast<T>(terms.loss);
  out.dense[t] = static_cast<T>(dense);
  out.entropy_weight[t] = static_cast<T>(terms.entropy_weight);
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
