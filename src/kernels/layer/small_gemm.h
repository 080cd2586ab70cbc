// A matrix product for blocks that stay in cache, where a BLAS call would cost more than the work.
#pragma once

#include <cstdint>

namespace augur {

// Columns come in panels of this many floats; pad B and C with zeros up to it.
inline constexpr int kGemmPanel = 16;

inline constexpr int RoundUpToPanel(int n) { return (n + kGemmPanel - 1) / kGemmPanel * kGemmPanel; }

// C[m, n] = A[m, k] * B[k, n], or += when `accumulate`. A is addressed as a[i * a_row + l * a_col], so either
// of A and its transpose will do; B and C are row-major with n a multiple of kGemmPanel.
void SmallGemm(int m, int n, int k, const float* a, int64_t a_row, int64_t a_col, const float* b,
               int64_t b_row, float* c, int64_t c_row, bool accumulate);

}  // namespace augur
