// The machine's memory.
#pragma once

#include <cstdint>

namespace augur {

// Bytes that can be had without swapping, and within the control group's limit.
int64_t AvailableMemory();

// This process's share of it where torchrun or srun started several on the machine.
int64_t AvailableMemoryPerProcess();

// The most bytes this process could ever have: what is built in, or what its control group or resource limits
// leave.
int64_t MostMemory();

}  // namespace augur
