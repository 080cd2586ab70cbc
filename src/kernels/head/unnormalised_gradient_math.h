// One row's factor and what its support becomes, for CPU and CUDA alike.
#pragma once

#include <cmath>

#include "base/host_device.h"
#include "kernels/head/unnormalised_gradient.h"

namespace augur {

// A row whose dense part is 0 or not finite is not a multiple of the unnormalised probabilities: `empty` rows
// are cleared, and their sampled token holds -dense.
template <typename T>
struct UnnormalisedRow {
  bool empty;
  T factor, dense, log_sum_exp, reference;

  AUGUR_HOST_DEVICE static UnnormalisedRow Of(const LogitRows& rows, const UnnormalisedGradient<T>& parts,
                                              int64_t r) {
    UnnormalisedRow row;
    row.dense = parts.dense[r];
    row.log_sum_exp = parts.log_sum_exp[r];
    row.reference = parts.reference[r];
    row.empty = !(fabs(row.dense) > 0);
    row.factor = (parts.scale ? *parts.scale : T(1)) * static_cast<T>(1 / rows.temperature);
    if (!row.empty) row.factor *= row.dense * exp(row.reference - row.log_sum_exp);
    return row;
  }

  AUGUR_HOST_DEVICE T AtSupport(T log_pi, bool sampled) const {
    if (empty) return sampled ? -dense : T(0);
    const auto pi = exp(log_pi + (log_sum_exp - reference));  // of double on the CPU, and rounded at the end
    return static_cast<T>(sampled ? pi - exp(log_sum_exp - reference) : pi);
  }
};

}  // namespace augur
