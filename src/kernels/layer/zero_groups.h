// Weight gradients of experts that no token went to.
#pragma once

#include <cstdint>

namespace augur {

// matrices [groups, bytes], multiples of 16: those of groups whose rows end where they begin become zeros.
// The rows of group g end before ends[g].
void ZeroEmptyGroupsCuda(int64_t groups, int64_t bytes, const int32_t* ends, void* matrices, void* stream);

}  // namespace augur
