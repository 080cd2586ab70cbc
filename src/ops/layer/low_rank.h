// Low-rank parts (LoRA) of frozen weights: a weight that stands for base + scale b a, of which a and b are
// trained.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace augur {

// What is added to some of a weight's outputs.
struct LowRank {
  std::string name;       // of the adapted module within its layer: "self_attn.q_proj"
  int64_t begin_row = 0;  // of the weight's outputs
  at::Tensor a, b;        // float32 [rank, in] and [rows, rank]; of experts [experts, ...]
  double scale = 1;
};

// The factors as autograd takes them (a, b, a, b, ...), and where they belong.
struct LowRankPlaces {
  std::vector<int64_t> begins;
  std::vector<double> scales;
};
std::vector<at::Tensor> FactorsOf(const std::vector<LowRank>& parts);
LowRankPlaces PlacesOf(const std::vector<LowRank>& parts);

// Gradients of the factors from those of the outputs: with y = x (base + scale b a)', da = scale (dy b)' x
// and db = scale dy' (x a'), whatever the merged weight was rounded to. x [rows, in], grad [rows, out].
std::vector<at::Tensor> LowRankGradients(const at::Tensor& x, const at::Tensor& grad,
                                         const std::vector<at::Tensor>& factors, const LowRankPlaces& places);

}  // namespace augur
