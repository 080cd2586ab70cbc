// The gradient of rows that RowStats turned into unnormalised probabilities, without another sweep.
#pragma once

#include <cstdint>

#include "kernels/head/row_stats.h"

namespace augur {

// d loss / d logits of a row is factor[row] times the row: unnormalised probabilities are pi but for a
// factor, so that it is right already outside the support, and only the support is written. Per row the parts
// are those of RowGradient, without an entropy term, a sparse part and softcap.
//
// `source` is that of RowGradient: rows move into the places of rows without a gradient.
template <typename T>
struct UnnormalisedGradient {
  const T* log_sum_exp = nullptr;       // [rows]
  const T* reference = nullptr;         // [rows]
  const T* dense = nullptr;             // [rows]
  const T* support_logprobs = nullptr;  // [rows, columns] log pi of the support
  const T* scale = nullptr;             // one value on the same device that multiplies everything; null is 1
  const int32_t* source = nullptr;      // [rows] or null
  T* factor = nullptr;                  // [rows], of the gradient's rows
};

// rows.logits holds the unnormalised probabilities and is overwritten; rows.rows counts the gradient's rows.
// On CUDA rows start at 16 bytes. Half has too small a range for unnormalised probabilities.
template <typename T>
void UnnormalisedGradientCpu(const LogitRows& rows, const UnnormalisedGradient<T>& parts);
template <typename T>
void UnnormalisedGradientCuda(const LogitRows& rows, const UnnormalisedGradient<T>& parts, void* stream);

}  // namespace augur
