// From torch tensors to the kernels' pointers and devices.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/simd/element.h"
#include "ops/device.h"

namespace augur {

inline ElementType ElementTypeOf(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kDouble:
      return ElementType::kDouble;
    case at::kBFloat16:
      return ElementType::kBFloat16;
    case at::kHalf:
      return ElementType::kHalf;
    default:
      return ElementType::kFloat;
  }
}

// What kernels compute in: float64 for float64 tensors, float32 for all others.
inline at::ScalarType ComputeType(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// Calls f with a value of the compute type, which must be kDouble or kFloat.
template <typename F>
void WithComputeType(at::ScalarType type, F f) {
  if (type == at::kDouble) {
    f(double());
  } else {
    f(float());
  }
}

// The same kernel on the device of `on`.
template <typename Cpu, typename Cuda, typename... Args>
void Run(const at::Tensor& on, Cpu cpu, Cuda cuda, Args&&... args) {
  if (on.is_cuda()) {
    cuda(args..., CurrentStream(on));
  } else {
    cpu(args...);
  }
}

}  // namespace augur
