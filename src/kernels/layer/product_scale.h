// The scales of a product of FP8 factors, which commute with it: the product is computed without them, and
// the kernel that reads it multiplies them in.
#pragma once

namespace augur {

// Entry [r, c] of the product is row[r] * column[c] times what stands in memory. Null: it is whole already.
struct ProductScale {
  const float* row = nullptr;     // [rows]: of the tokens
  const float* column = nullptr;  // [columns]: of the output channels
};

}  // namespace augur
