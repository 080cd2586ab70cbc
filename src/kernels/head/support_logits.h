// The few logits that decisions rest on, as dot products of their own: a bf16 logit of 16 to 32 is rounded by
// up to 0.06, which is as much as the thresholds they are compared with.
#pragma once

#include <cstdint>

#include "kernels/simd/element.h"

namespace augur {

// Rows of hidden states and of the head, dense, of one element type.
struct SupportRows {
  const void* hidden = nullptr;  // [rows, width]
  const void* weight = nullptr;  // [vocab, width]
  const void* bias = nullptr;    // [vocab] or null
  ElementType type = ElementType::kFloat;
  int64_t rows = 0;
  int64_t width = 0;
  const int32_t* support = nullptr;  // [rows, columns] below vocab, -1 in unused columns
  int columns = 0;
};

// logits [rows, columns] = hidden . weight[support] + bias[support], 0 in unused columns. T is double for
// double elements and float otherwise; products and sums are made in T.
template <typename T>
void SupportLogitsCpu(const SupportRows& in, T* logits);
template <typename T>
void SupportLogitsCuda(const SupportRows& in, T* logits, void* stream);

}  // namespace augur
