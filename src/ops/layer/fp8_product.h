// Products of matrices rounded to FP8, one scheme for rollouts and training: e4m3 with a scale for each row,
// which is a token of activations or gradients, an output channel of weights.
#pragma once

#include <ATen/core/Tensor.h>

namespace augur {

// A matrix in FP8: row r is values[r] * scale[r].
struct Fp8Rows {
  at::Tensor values;  // [..., rows, width] float8_e4m3fn
  at::Tensor scale;   // [..., rows] float32: the largest magnitude of the row / 448; 1 for a row of zeros
};

// Uninitialised, on the device of `like`.
Fp8Rows EmptyFp8Rows(const at::Tensor& like, at::IntArrayRef sizes);

// Rounded to nearest. matrix [..., rows, width], float32 or bfloat16 on CUDA. A row with a NaN or an infinity
// becomes NaN.
Fp8Rows RoundRowsToFp8(const at::Tensor& matrix);

// The same of matrix [..., rows, width] with its last two dimensions exchanged.
Fp8Rows RoundColumnsToFp8(const at::Tensor& matrix);

// The same for products whose sums run over the rows, which must not depend on how they are divided among
// calls: a column's scale is the least power of two by which it fits, so that a value is rounded alike
// whatever stands next to it. On CUDA [width, rows, filled up with zeros to whole units].
Fp8Rows RoundColumnsForSums(const at::Tensor& matrix);

// The same of RmsNorm(x, weight, eps) and of Swiglu(gate_up), in the kernels that make them.
Fp8Rows RmsNormToFp8(const at::Tensor& x, const at::Tensor& weight, double eps);
Fp8Rows SwigluToFp8(const at::Tensor& gate_up);

// a [m, k] times b [n, k] transposed, plus `bias` where there is one, rounded once to `type`. On FP8 units
// where the GPU has them and k and n are multiples of 16; elsewhere the rounded values are multiplied in
// float32.
at::Tensor Fp8Product(const Fp8Rows& a, const Fp8Rows& b, const at::Tensor& bias, at::ScalarType type);

// Whether FP8 units take a product by this weight [n, k]; and that product of a and b without their scales.
bool HasFp8Product(const at::Tensor& weight);
at::Tensor Fp8ProductWithoutScales(const Fp8Rows& a, const Fp8Rows& b, at::ScalarType type);

// The gradient [out, in] of a weight from that of the outputs [rows, out] and the inputs [rows, in], on FP8
// units, and whether there are units that take it: bfloat16, out and in multiples of 16, any number of rows.
bool HasFp8WeightGradient(const at::Tensor& grad, const at::Tensor& x);
at::Tensor Fp8WeightGradient(const at::Tensor& grad, const at::Tensor& x);

// Whether Fp8GroupedProduct takes weights of this size on this device.
bool HasFp8GroupedProduct(const at::Tensor& weights);

// rows [N, k], those of group g ending before ends[g] (int32 [groups]); weights [groups, n, k] → bfloat16 [N,
// n].
at::Tensor Fp8GroupedProduct(const Fp8Rows& rows, const Fp8Rows& weights, const at::Tensor& ends);

}  // namespace augur
