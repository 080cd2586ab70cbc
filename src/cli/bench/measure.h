// Time and memory of several ways to do one thing, measured in turns so that a busy machine slows all of them
// alike.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "model/model.h"

namespace augur {

struct Measured {
  double seconds = 0;      // median over the rounds, from call to finished work
  int64_t peak_bytes = 0;  // most tensor memory in use at once, beyond what was in use before
};

// Most tensor memory in use at once, beyond what was in use before.
int64_t PeakBytes(const std::function<void()>& call);

// Calls each contestant once to warm up and measure its memory, then `rounds` times in turns. On a GPU, which
// at its power limit is slowed by what ran just before, each timed call follows an untimed one of its own.
std::vector<Measured> MeasureInTurns(c10::Device device, int rounds,
                                     const std::vector<std::function<void()>>& contestants);

// Waits for what is queued on the device.
void Synchronize(c10::Device device);

// Most memory held at once since the program began: of the process on the CPU, of torch's allocator on a GPU.
int64_t PeakMemoryBytes(c10::Device device);

// Adapters of all linear layers, with the final norm, over a base that may be in FP8; nothing where the
// rank is 0.
void AddBenchAdapters(int64_t rank, bool fp8, Model* model);

}  // namespace augur
