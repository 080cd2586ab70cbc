// Statistics of logit rows in one sweep, and the gradient of a row from them.
//
// The sweep sums over the tokens outside the support, so that the tail's mass is never taken as one minus the
// rest, and adds the support's few logits afterwards. Where these are known beforehand, the largest of them
// is what all unnormalised probabilities are measured from; only a row that lies far above it is swept again
// from its own largest.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "kernels/simd/element.h"

namespace augur {

// Rows of logits and their supports. z below is softcap * tanh(logit / softcap), or the logit itself with
// softcap 0, divided by the temperature.
struct LogitRows {
  const void* logits = nullptr;  // [rows, width]
  ElementType type = ElementType::kFloat;
  int64_t rows = 0;
  int64_t width = 0;                 // elements from one row to the next
  int64_t vocab_size = 0;            // real entries of a row; the padding behind them is never read
  const int32_t* support = nullptr;  // [rows, columns], -1 in unused columns; all below vocab_size
  int columns = 0;
  double temperature = 1;
  double softcap = 0;
};

// T is double for double logits and float otherwise.
template <typename T>
struct RowStats {
  // [rows, columns] logits of the support known more precisely than in the rows (before softcap and
  // temperature); null reads them from the rows. Where given, the rows' own entries of the support may be
  // overwritten, which spares the sweep looking up what belongs to it.
  const T* support_logits = nullptr;
  T* log_sum_exp = nullptr;       // [rows]
  T* entropy = nullptr;           // [rows]
  T* tail_mass = nullptr;         // [rows] sum of pi outside the support
  T* tail_square = nullptr;       // [rows] sum of pi^2 outside the support
  T* support_logprobs = nullptr;  // [rows, columns] log pi; -inf in unused columns
  // [rows] or null. Where given, which needs support_logits and softcap 0, the sweep leaves unnormalised
  // probabilities e^(z - reference[row]) in place of the logits: pi but for a factor that the sweep cannot
  // know yet. They are 0 at the support and in the padding.
  T* reference = nullptr;
  // One value, with `reference`: set to 1 where some row's unnormalised probabilities were too large for
  // their type. Nothing of such a row can be used.
  int32_t* overflowed = nullptr;
};

template <typename T>
void RowStatsCpu(const LogitRows& rows, const RowStats<T>& stats);
template <typename T>
void RowStatsCuda(const LogitRows& rows, const RowStats<T>& stats, void* stream);

// d loss / d logits, given per row the parts of d loss / d z:
//   dense[row] * pi_j + entropy_weight[row] * pi_j * (log pi_j + entropy[row]) for every j,
//   plus sparse[row, c] at the support; without `sparse`, -dense[row] at the sampled token, entry 0.
// A row whose dense, entropy_weight and sparse parts are all zero is written as zeros without being read.
//
// With `source`, gradient row r is that of row source[r] and LogitRows::rows counts the gradient's rows only:
// rows without a gradient are left out. Overwriting the logits then needs every row r that is not its own
// source to be nobody's source, which is what LiveRows gives.
template <typename T>
struct RowGradient {
  const T* log_sum_exp = nullptr;       // [rows]
  const T* entropy = nullptr;           // [rows], read where entropy_weight is given
  const T* dense = nullptr;             // [rows]
  const T* entropy_weight = nullptr;    // [rows] or null
  const T* sparse = nullptr;            // [rows, columns] or null
  const T* support_logprobs = nullptr;  // [rows, columns] log pi of the support; null reads the rows
  const T* scale = nullptr;             // one value on the same device that multiplies everything; null is 1
  const int32_t* source = nullptr;      // [rows] or null
  void* gradient = nullptr;             // [rows, width] of the logits' type; may be the logits themselves

  AUGUR_HOST_DEVICE T SparseAt(int64_t row, int c, int columns) const {
    return sparse ? sparse[row * columns + c] : c == 0 ? -dense[row] : T(0);
  }
};

template <typename T>
void RowGradientCpu(const LogitRows& rows, const RowGradient<T>& parts);
template <typename T>
void RowGradientCuda(const LogitRows& rows, const RowGradient<T>& parts, void* stream);

}  // namespace augur
