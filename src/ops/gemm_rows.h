// How many rows to multiply at once on a GPU.
#pragma once

#include <cstdint>

namespace augur {

// Of `waiting` rows to be multiplied by a matrix with `width` columns, how many to take now so that the least
// time goes into each. A product is computed in tiles, as many at a time as the GPU has multiprocessors, and
// the last such wave costs as much as a full one: 3,328 rows of 2,560 columns fill two waves of an H200, and
// 3,392 need three. What is not taken waits for more. Everything where `multiprocessors` is 0 (the CPU).
int64_t RowsToMultiply(int64_t waiting, int64_t width, int multiprocessors);

}  // namespace augur
