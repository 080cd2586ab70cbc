// Liveness of one row, for CPU and CUDA alike.
#pragma once

#include "base/host_device.h"
#include "kernels/head/live_rows.h"

namespace augur {

template <typename T>
AUGUR_HOST_DEVICE bool IsLive(const LiveRowsInput<T>& in, int64_t row) {
  return in.dense[row] != 0 || in.entropy_weight[row] != 0;
}

}  // namespace augur
