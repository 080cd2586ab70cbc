// One rank of many, without the others: for its memory and its compute.
#pragma once

namespace augur {

// From now on this process is rank 0 of `size`. Collectives copy what they would receive from this rank's own
// data and send nothing.
void UseFakeGroup(int size);

}  // namespace augur
