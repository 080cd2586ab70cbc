// Where and in what numbers a run computes.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>

#include "config/config.h"
#include "model/forward.h"
#include "rollout/engine.h"

namespace augur {

// run.device, with auto resolved to a GPU where one is present and built for. It becomes the thread's device.
at::Device RunDevice(const RunSection& run);

// The trainer's GEMM type: float32 for fp32, else bfloat16.
at::ScalarType TrainerType(Precision precision);

// How the layers compute: FP8 products, and what the backward computes again.
ForwardOptions MakeForwardOptions(Precision precision, const OptimizerFields& fields);

// Whether generation overlaps training: in a process alone on a GPU, where rollouts may be older than the
// weights.
bool Overlaps(const RlConfig& config, at::Device device);

// What to say where a GPU is to generate in float32, which its tensor cores do not take; empty on a CPU.
// `remedy` is the setting for bfloat16.
std::string SlowPrecisionWarning(at::Device device, std::string_view remedy);

// The engine of a run.
EngineOptions MakeEngineOptions(const RlConfig& config, at::Device device);

// Sets torch's and OpenMP's threads; 0 takes all cores. Returns how many.
int64_t SetThreads(int64_t threads);

// Takes only kernels that give the same bits at every run; before the first use of a GPU.
void SetDeterministic(bool on);

}  // namespace augur
