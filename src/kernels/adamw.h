// One AdamW update of a parameter, in one sweep over its memory, as torch.optim.AdamW computes it:
//   p -= lr * weight_decay * p;  m += (1 - beta1)(g - m);  v = beta2 v + (1 - beta2) g^2
//   p -= lr / (1 - beta1^step) * m / (sqrt(v) / sqrt(1 - beta2^step) + eps)
#pragma once

#include <cstdint>

#include "kernels/simd/element.h"

namespace augur {

struct AdamWSettings {
  double lr = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  int64_t step = 1;       // from 1
  double grad_scale = 1;  // gradients are multiplied by this first
  uint64_t place = 0;     // of the first element among all that are trained; 16-bit states are rounded by it
};

// All arrays have `size` elements and stand on one device. Gradients are float or bfloat16, states likewise;
// a 16-bit state is rounded up or down at random with the mean kept, since an average that moves by a
// thousandth would otherwise stand still. `copy`, where not null, receives the new parameter as bfloat16.
struct AdamWArrays {
  float* parameter = nullptr;
  void* copy = nullptr;
  const void* gradient = nullptr;
  ElementType gradient_type = ElementType::kFloat;
  void* first = nullptr;   // m
  void* second = nullptr;  // v
  ElementType state_type = ElementType::kFloat;
  int64_t size = 0;
};

void AdamWCpu(const AdamWArrays& arrays, const AdamWSettings& settings);
void AdamWCuda(const AdamWArrays& arrays, const AdamWSettings& settings, void* stream);

// The sum of squares in float64, in an order that does not depend on the number of threads.
double SquaredNormCpu(const void* data, ElementType type, int64_t size);

}  // namespace augur
