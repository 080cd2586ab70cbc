// Which rows of a chunk have a gradient at all, and where their gradients go so that they lie side by side.
#pragma once

#include <cstdint>

namespace augur {

// A row without a sparse part (see RowGradient) is live when its dense or its entropy_weight is not zero.
template <typename T>
struct LiveRowsInput {
  const T* dense = nullptr;           // [rows]
  const T* entropy_weight = nullptr;  // [rows]
  int64_t rows = 0;
};

// With n live rows: source[0, n) names each of them once. A live row below n stays where it is, and those
// behind fill the places of dead rows, so that gradients may overwrite the logits they come from. source has
// `rows` entries; those from n on are scratch.
template <typename T>
void LiveRowsCpu(const LiveRowsInput<T>& in, int32_t* source, int32_t* count);
template <typename T>
void LiveRowsCuda(const LiveRowsInput<T>& in, int32_t* source, int32_t* count, void* stream);

}  // namespace augur
