// The serialised form of a trajectory: what ranks send each other, and what checkpoints hold.
#pragma once

#include "base/bytes.h"
#include "trajectory/trajectory.h"

namespace augur {

// All but the prompt's tokens, which the reader has.
void PutTrajectory(const Trajectory& trajectory, ByteWriter* out);
// Throws Error where the bytes are not those of a trajectory.
Trajectory GetTrajectory(ByteReader* in);

}  // namespace augur
