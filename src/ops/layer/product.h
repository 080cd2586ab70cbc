// Matrix products as the device makes them fastest. A CPU without instructions for bfloat16 multiplies in
// float32 and rounds the sums: torch's own products of bfloat16 imitate such instructions there, at about a
// quarter of the speed.
#pragma once

#include <ATen/core/Tensor.h>

namespace augur {

// Whether factors of this tensor's type are multiplied in float32.
bool MultipliesInFloat(const at::Tensor& x);

// x as it is multiplied: itself, or its values in float32.
at::Tensor Factor(const at::Tensor& x);

// a b in the type of a.
at::Tensor Product(const at::Tensor& a, const at::Tensor& b);
// out = a b + bias, the bias [n] or undefined. Factors that Factor() has made are taken as they are.
void ProductInto(at::Tensor out, const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias = {});

}  // namespace augur
