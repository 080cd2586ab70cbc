// The serialised form of a score: what ranks send each other, and what checkpoints hold.
#pragma once

#include "base/bytes.h"
#include "reward/scorer.h"

namespace augur {

void PutScore(const Score& score, ByteWriter* out);
Score GetScore(ByteReader* in);

}  // namespace augur
