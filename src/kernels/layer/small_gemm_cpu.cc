#include "kernels/layer/small_gemm.h"
#include "kernels/simd/simd.h"

namespace augur {
namespace {

#if defined(__x86_64__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
typedef float Vector __attribute__((vector_size(kLanes * sizeof(float)), aligned(4), may_alias));

// kRows rows of one panel of C, held in registers over the whole of k.
template <int kRows>
inline __attribute__((always_inline)) void Tile(int k, const float* a, int64_t a_row, int64_t a_col,
                                                const float* b, int64_t b_row, float* c, int64_t c_row,
                                                bool accumulate) {
  constexpr int kVectors = kGemmPanel / kLanes;
  Vector sum[kRows][kVectors];
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      sum[i][v] = accumulate ? *reinterpret_cast<const Vector*>(c + i * c_row + v * kLanes) : Vector{};
    }
  }
  for (int l = 0; l < k; ++l) {
    Vector row[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      row[v] = *reinterpret_cast<const Vector*>(b + l * b_row + v * kLanes);
    }
    for (int i = 0; i < kRows; ++i) {
      const float factor = a[i * a_row + l * a_col];
      for (int v = 0; v < kVectors; ++v) sum[i][v] += factor * row[v];
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kVectors; ++v) *reinterpret_cast<Vector*>(c + i * c_row + v * kLanes) = sum[i][v];
  }
}

}  // namespace

AUGUR_CPU_CLONES
void SmallGemm(int m, int n, int k, const float* a, int64_t a_row, int64_t a_col, const float* b,
               int64_t b_row, float* c, int64_t c_row, bool accumulate) {
  for (int j = 0; j < n; j += kGemmPanel) {
    int i = 0;
    for (; i + 4 <= m; i += 4) {
      Tile<4>(k, a + i * a_row, a_row, a_col, b + j, b_row, c + i * c_row + j, c_row, accumulate);
    }
    for (; i < m; ++i) {
      Tile<1>(k, a + i * a_row, a_row, a_col, b + j, b_row, c + i * c_row + j, c_row, accumulate);
    }
  }
}

}  // namespace augur
