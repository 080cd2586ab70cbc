// One row's factor and what its support becomes, for CPU and CUDA alike.
#pragma once

#include <cmath>

#include "base/random.h"  // AUGUR_HOST_DEVICE
#include "kernels/head/unnormalised_gradient.h"

namespace augur {

// A gradient whose dense part is negligible against the sparse one is not a multiple of the unnormalised
// probabilities: `empty` rows are cleared, and their support holds the sparse part.
template <typename T>
struct UnnormalisedRow {
  bool empty;
  T factor, dense, log_sum_exp, reference;

  AUGUR_HOST_DEVICE static UnnormalisedRow Of(const LogitRows& rows, const UnnormalisedGradient<T>& parts,
                                              int64_t r) {
    T largest = 0;
    for (int c = 0; c < rows.columns; ++c) largest = fmax(largest, fabs(parts.sparse[r * rows.columns + c]));
    UnnormalisedRow row;
    row.dense = parts.dense[r];
    row.log_sum_exp = parts.log_sum_exp[r];
    row.reference = parts.reference[r];
    row.empty = !(fabs(row.dense) > static_cast<T>(1e-20) * largest);
    row.factor = (parts.scale ? *parts.scale : T(1)) * static_cast<T>(1 / rows.temperature);
    if (!row.empty) row.factor *= row.dense * exp(row.reference - row.log_sum_exp);
    return row;
  }

  AUGUR_HOST_DEVICE T AtSupport(T log_pi, T sparse) const {
    if (empty) return sparse;
    return exp(log_pi + (log_sum_exp - reference)) + sparse / dense * exp(log_sum_exp - reference);
  }
};

}  // namespace augur
