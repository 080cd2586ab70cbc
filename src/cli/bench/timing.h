// Timing for benchmarks: how long one call takes on its device.
#pragma once

#include <c10/core/Device.h>

#include <functional>

namespace augur {

// Median seconds per call of `call(i)`, i counting up from 0 so that a caller can rotate among inputs.
// CPU: wall time of single calls. CUDA: `calls` calls are captured in a graph and its replays are timed with
// events, which leaves launch overhead out for every contestant alike; `call` must not wait for the device.
double SecondsPerCall(c10::Device device, int calls, const std::function<void(int)>& call);

}  // namespace augur
