// Liveness of one row, for CPU and CUDA alike.
#pragma once

#include "base/random.h"  // AUGUR_HOST_DEVICE
#include "kernels/head/live_rows.h"

namespace augur {

template <typename T>
AUGUR_HOST_DEVICE bool IsLive(const LiveRowsInput<T>& in, int64_t row) {
  if (in.dense[row] != 0 || in.entropy_weight[row] != 0) return true;
  for (int c = 0; c < in.columns; ++c) {
    if (in.sparse[row * in.columns + c] != 0) return true;
  }
  return false;
}

}  // namespace augur
