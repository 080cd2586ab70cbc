// Sums in bfloat16: each addition is rounded up or down at random with the mean kept, since what is smaller
// than half a step of the sum would otherwise vanish.
#pragma once

#include <cstdint>

#include "kernels/simd/element.h"

namespace augur {

// sum[i] += added[i]; the arrays have `size` elements and stand on one device. The random numbers follow from
// key and step alone. What is not finite stays so.
struct RandomSum {
  void* sum = nullptr;  // bfloat16
  const void* added = nullptr;
  ElementType added_type = ElementType::kFloat;
  int64_t size = 0;
  uint64_t key = 0, step = 0;
};

void AddAtRandomCpu(const RandomSum& sum);
void AddAtRandomCuda(const RandomSum& sum, void* stream);

}  // namespace augur
