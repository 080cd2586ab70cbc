// From torch tensors to the typed pointers that kernels take, and from typed values to tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "kernels/simd/element.h"

namespace augur {

// The tensor's data; T must be the element type its dtype stands for.
template <typename T>
T* Data(const at::Tensor& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}
template <typename T>
const T* ConstData(const at::Tensor& tensor) {
  return static_cast<const T*>(tensor.const_data_ptr());
}

// A tensor on `device` with these values.
template <typename T>
at::Tensor ToDevice(const std::vector<T>& values, at::IntArrayRef shape, at::Device device) {
  const at::Tensor tensor = at::empty(shape, c10::CppTypeToScalarType<T>::value);
  std::ranges::copy(values, Data<T>(tensor));
  return tensor.to(device);
}
template <typename T>
at::Tensor ToDevice(const std::vector<T>& values, at::Device device) {
  return ToDevice(values, {static_cast<int64_t>(values.size())}, device);
}

// Calls f with a value of the kernels' element type for a float32 or bfloat16 tensor.
template <typename F>
void WithElementType(const at::Tensor& tensor, F f) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return f(float{});
    case at::kBFloat16:
      return f(BFloat16{});
    default:
      throw Error("", fmt::format("no kernel for tensors of {}", c10::toString(tensor.scalar_type())),
                  "use float32 or bfloat16");
  }
}

}  // namespace augur
