// The terms of a policy's loss: one struct from the configuration to the kernels.
#pragma once

#include <array>
#include <string_view>

#include "base/names.h"
#include "mask/rule.h"

namespace augur {

// How the distance to a reference policy is estimated from the sampled token, with x = log ref - log pi:
// k1 = -x, k2 = x^2 / 2, k3 = e^x - x - 1.
enum class ReferenceKl { kNone, kK1, kK2, kK3 };
template <>
inline constexpr std::array<std::string_view, 4> kNamesOf<ReferenceKl>{"none", "k1", "k2", "k3"};

// A token of weight w adds w times the sum of these to the loss (TermsOf in kernels/head/surrogate_math.h).
struct LossTerms {
  MaskRule rule;             // -c A, and its penalty
  double entropy_bonus = 0;  // -entropy_bonus * entropy of the token's distribution
  double kl_coef = 0;        // +kl_coef * reference_kl, the estimate of KL(pi || reference)
  ReferenceKl reference_kl = ReferenceKl::kNone;

  // Whether a token without advantage adds to the loss.
  bool beyond_rule() const {
    return rule.penalty != Penalty::kNone || entropy_bonus != 0 || reference_kl != ReferenceKl::kNone;
  }
};

}  // namespace augur
