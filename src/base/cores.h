// The machine's cores.
#pragma once

#include <cstdint>

namespace augur {

// Cores that this process may keep busy: those of the machine, or fewer where its affinity (taskset, Slurm)
// or its control group leaves it fewer.
int64_t UsableCores();

}  // namespace augur
