// Hands the tokens that one decode step sampled to the next without the host, on a GPU.
#pragma once

#include <cstdint>

namespace augur {

// tokens[i] = sampled[source[i]] where source[i] is not negative; a token that could not be sampled (-1)
// becomes 0.
void TakeTokensCuda(int64_t count, const int32_t* source, const int32_t* sampled, int32_t* tokens,
                    void* stream);

}  // namespace augur
