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

// Whether products of this tensor's type are oneDNN's, which compiles a kernel for each shape that it meets:
// up to 5 ms, where a small model's product takes half of one, and batches differ in their tokens.
bool CompilesShapes(const at::Tensor& x);
// x [n, k], where it is one of these and its product with k * columns numbers is small, with rows of zeros up
// to a number that other batches have, too.
at::Tensor RowsOfCommonShape(const at::Tensor& x, int64_t columns);

// a b in the type of a.
at::Tensor Product(const at::Tensor& a, const at::Tensor& b);
// out = a b + bias, the bias [n] or undefined. Factors that Factor() has made are taken as they are.
void ProductInto(at::Tensor out, const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias = {});

}  // namespace augur
