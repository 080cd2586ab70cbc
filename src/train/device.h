// Where and in what numbers a run computes.
#pragma once

#include <ATen/core/Tensor.h>

#include "config/config.h"

namespace augur {

// run.device, with auto resolved to a GPU where one is present and built for.
at::Device RunDevice(const RunSection& run);

// The trainer's GEMM type: float32 for fp32, else bfloat16.
at::ScalarType TrainerType(Precision precision);

// Sets torch's and OpenMP's threads; 0 takes all cores. Returns how many.
int64_t SetThreads(int64_t threads);

}  // namespace augur
