// What a rule adds to the loss of every token, masked or not.
#pragma once

#include "base/host_device.h"
#include "mask/rule.h"

namespace augur {

// The penalty of a token, whose x = log r is clamped, and its slope in log pi.
AUGUR_HOST_DEVICE double PenaltyOf(const MaskRule& rule, double log_ratio, double ratio) {
  if (rule.penalty == Penalty::kLogRatio) return rule.penalty_coef * log_ratio * log_ratio;
  if (rule.penalty == Penalty::kRatio) return rule.penalty_coef * (ratio - 1) * (ratio - 1);
  return 0;
}
AUGUR_HOST_DEVICE double PenaltySlope(const MaskRule& rule, double log_ratio, double ratio) {
  if (rule.penalty == Penalty::kLogRatio) return 2 * rule.penalty_coef * log_ratio;
  if (rule.penalty == Penalty::kRatio) return 2 * rule.penalty_coef * (ratio - 1) * ratio;
  return 0;
}

}  // namespace augur
