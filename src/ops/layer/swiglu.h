// SwiGLU with autograd.
#pragma once

#include <ATen/core/Tensor.h>

namespace augur {

// silu(gate) * up for gate_up [rows, 2 * width] (gate, then up), float32 or bfloat16; [rows, width].
at::Tensor Swiglu(const at::Tensor& gate_up);

// The same in plain tensor operations: the reference of the kernels.
at::Tensor SwigluReference(const at::Tensor& gate_up);

}  // namespace augur
