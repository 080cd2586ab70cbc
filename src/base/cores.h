// The machine's cores.
#pragma once

#include <cstdint>

namespace augur {

// Cores that this process may keep busy: those of the machine, or fewer where its affinity (taskset, Slurm)
// or its control group leaves it fewer.
int64_t UsableCores();

// Those of this process where torchrun or srun started several on the machine.
int64_t CoresPerProcess();

}  // namespace augur
