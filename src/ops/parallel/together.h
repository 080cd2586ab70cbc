// What all ranks know alike.
#pragma once

#include <string>

#include "ops/parallel/ranks.h"

namespace augur {

// Throws Error about `what` on the ranks whose text is not the first rank's, naming the first line that
// differs. All ranks call it.
void ExpectSame(const Ranks& ranks, const std::string& what, const std::string& mine,
                const std::string& remedy);

// In a catch block: whether the fault came out of Ranks::Together, so that every rank has one.
bool FailedTogether();

}  // namespace augur
