// What generation hands on.
#pragma once

#include "trajectory/trajectory.h"

namespace augur {

using Rollout = Trajectory;

}  // namespace augur
