// Prompts that several sequences of a batch begin with, computed once: all that treats tokens one by one sees
// each of their rows once, and attention, which reads whole sequences, copies of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace augur {

// Rows [row, row + length) of what is computed once stand at [place, place + length) of a sequence too.
struct PrefixCopy {
  int64_t row, place, length;
};

struct SharedPrefixes {
  at::Tensor sources;  // [tokens of all sequences] int64: the row of each; undefined: nothing is shared
  at::Tensor places;   // [rows] int64: where each row first stands
  std::vector<PrefixCopy> copies;  // beyond the first, those of the same rows together

  bool empty() const { return !sources.defined(); }
};

// [rows, width] → [tokens of all sequences, width]. A row's gradient is the sum of its copies', in float32.
at::Tensor CopyPrefixes(const at::Tensor& rows, const SharedPrefixes& shared);

// The way back: the first copy of each row. The others have no gradient.
at::Tensor DropCopies(const at::Tensor& tokens, const SharedPrefixes& shared);

}  // namespace augur
