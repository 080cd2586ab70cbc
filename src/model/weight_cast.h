// Stored weights and the dtypes that computation uses.
#pragma once

#include <ATen/core/Tensor.h>

#include "formats/safetensors.h"

namespace augur {

// Copies a stored F32, F16 or BF16 tensor into `to` (float32 or bfloat16, CPU, contiguous, as many elements),
// rounding to nearest even. Returns whether every value written is finite.
bool CastWeights(const TensorView& from, const at::Tensor& to);

// What a tensor of float32 or bfloat16 is stored as.
DType StoredType(const at::Tensor& tensor);

}  // namespace augur
