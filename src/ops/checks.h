// Validation of what a caller hands to the operators, before any work is done.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <string_view>

namespace augur {

// An argument and its name in messages.
struct NamedTensor {
  std::string_view name;
  const at::Tensor& tensor;
};

// Throws Error unless the tensor has this shape; -1 matches any size.
void CheckShape(const NamedTensor& argument, at::IntArrayRef shape);
// Throws Error unless it is a matrix with one row per response token.
void CheckRows(const NamedTensor& argument, std::string_view shape);
void CheckFloating(const NamedTensor& argument);
// All defined tensors stand on one device, a CPU or a CUDA GPU.
void CheckSameDevice(std::initializer_list<NamedTensor> arguments);

// The rules of a recorded support, token by token: behaviour log-probs are no NaN, at most 1e-4 and sum to at
// most 1 + 1e-4; a used support has the sampled token in column 0; no more used columns than the vocabulary
// has tokens. `policy` (or an undefined tensor) obeys the same bounds where it is a number. CUDA tensors are
// copied to the CPU for this.
void CheckSupportLogprobs(const at::Tensor& behaviour, const at::Tensor& policy, int64_t vocab_size,
                          std::string_view behaviour_name);
// Ids are below the vocabulary size, unused (-1) exactly where the log-prob is -inf, and never twice in a
// token.
void CheckSupportIds(const at::Tensor& ids, const at::Tensor& behaviour, int64_t vocab_size);
void CheckFinite(const NamedTensor& argument);
// Sums of squared probabilities outside the support: a number from 0 to the square of the probability there,
// for tokens whose support is recorded. Rounding may lift it by a hundredth.
void CheckTailSquare(const at::Tensor& tail_square, const at::Tensor& behaviour, const at::Tensor& policy);

}  // namespace augur
