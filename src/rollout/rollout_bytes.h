// Rollouts on their way to another rank.
#pragma once

#include "base/bytes.h"
#include "rollout/rollout.h"

namespace augur {

// All but the prompt's tokens, which every rank has.
void PutRollout(const Rollout& rollout, ByteWriter* out);
Rollout GetRollout(ByteReader* in);

}  // namespace augur
