// A decoder's forward pass for generation on a GPU: rows of tokens through every layer, keys and values to
// their pages, by the fused kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "model/rope.h"
#include "rollout/cuda/weights.h"
#include "rollout/part_timer.h"

namespace augur {

inline constexpr int64_t kCudaPageTokens = 32;

// Keys and values of all layers.
struct CudaPages {
  at::Tensor memory;  // [layers, 2, pages, kv_heads, kCudaPageTokens, head_dim]: keys, values; bytes for FP8
  at::Tensor scales;  // for FP8: float32 [layers, 2, pages, kv_heads, kCudaPageTokens]
};

// The tokens of one pass; tensors are int32 on the GPU.
struct CudaBatch {
  at::Tensor tokens;      // [rows]
  at::Tensor positions;   // [rows]; negative: a row without a token
  at::Tensor owners;      // [rows]: rows of page_table; undefined: row r owns row r
  at::Tensor page_table;  // [sequences, pages], rows may stand apart
  // The pages that keys and values are written to, negative ones left as they are; undefined: page_table.
  at::Tensor written_table;
  // Whole sequences from position 0 (a prompt's pass): [sequences + 1]; undefined for single tokens.
  at::Tensor cu_seqlens;
  int64_t longest = 0;  // of the sequences
  // For single tokens: how their attention is divided, and its scratch.
  int splits = 1;
  at::Tensor attention_workspace;
  // Where defined, takes the experts of the rows: uint8 [rows, sparse layers * experts_per_token].
  at::Tensor routing;
};

// What experts make of few tokens; a choice is one of a token's experts.
struct CudaExpertRows {
  at::Tensor router_logits;            // [rows, experts]
  at::Tensor chosen, weights, places;  // kernels/decode/experts.h
  at::Tensor inner, out;               // [choices, expert's width], [choices, hidden]
  at::Tensor inner_quantised, inner_scale;
};

// Memory for the rows of a pass, reused by passes of fewer rows.
struct CudaRows {
  CudaRows(const CudaWeights& weights, int64_t rows);

  at::Tensor hidden, delta, normal, qkv, rotated, mixed, gate_up, inner;
  // FP8 inputs of the products, and their scales [rows, 1].
  at::Tensor quantised, quantised_scale, mixed_scale, inner_quantised, inner_scale;
  // Of the kernels for experts over few tokens; undefined for other models, and for more tokens.
  CudaExpertRows experts;
};

class CudaForward {
 public:
  // `parts`, where given, is told where the parts of a pass end.
  CudaForward(const CudaWeights& weights, PartTimer* parts);

  PartTimer* parts() const { return parts_; }

  // Whether a pass waits for the GPU in between, so that it cannot be captured in a graph.
  bool waits() const { return waits_; }

  // Runs the rows and returns their hidden states after the final norm [rows, hidden], a part of `memory`.
  at::Tensor Run(const CudaBatch& batch, const CudaPages& pages, CudaRows& memory) const;

  // Logits float32 [rows, vocab] into `out`.
  void Head(const at::Tensor& hidden, at::Tensor& out) const;

 private:
  struct Pass;
  const CudaWeights& weights_;
  PartTimer* parts_;
  RotationTable rotation_;
  RotationTable no_rotation_;  // where some layers rotate nothing
  bool waits_;
};

}  // namespace augur
