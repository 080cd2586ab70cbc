// Products of matrices rounded to FP8.
#pragma once

#include <ATen/core/Tensor.h>

namespace augur {

// A matrix in FP8: values times scale.
struct Fp8Matrix {
  at::Tensor values;  // float8_e4m3fn or float8_e5m2
  at::Tensor scale;   // float32 scalar
};

// Rounded to nearest, scaled so that the largest magnitude becomes the format's largest. A matrix of zeros
// stays so; one with a NaN or an infinity becomes NaN.
Fp8Matrix RoundToFp8(const at::Tensor& matrix, at::ScalarType format);

// a [m, k] times b [n, k] transposed, of type `type`. Sums are made in float32.
at::Tensor Fp8Product(const Fp8Matrix& a, const Fp8Matrix& b, at::ScalarType type);

// The transpose, its rows side by side.
Fp8Matrix Transposed(const Fp8Matrix& matrix);

}  // namespace augur
