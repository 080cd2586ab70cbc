// The tensors that the operators policy_loss and linear_policy_loss return, by name; torch knows them as
// tuples.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>
#include <utility>
#include <vector>

#include "ops/head/policy_loss.h"

namespace augur {

// In the order of the schemas.
struct LossOutputs {
  at::Tensor loss, logprobs, entropy, ratio, divergence, direction, keep, flags, sums;

  auto Tuple() const {
    return std::make_tuple(loss, logprobs, entropy, ratio, divergence, direction, keep, flags, sums);
  }
};

LossOutputs OutputsOf(const PolicyLoss& result);
// Their shapes alone. `rows` [T, ...] are the logits or hidden states.
LossOutputs MetaOutputsOf(const at::Tensor& rows);

template <typename Tuple>
std::vector<at::Tensor> ListOf(const Tuple& outputs) {
  return std::apply([](const auto&... t) { return std::vector<at::Tensor>{t...}; }, outputs);
}

// The reverse.
template <typename Tuple>
Tuple TupleOf(const std::vector<at::Tensor>& outputs) {
  return [&]<size_t... kPlace>(std::index_sequence<kPlace...>) {
    return Tuple{outputs.at(kPlace)...};
  }(std::make_index_sequence<std::tuple_size_v<Tuple>>());
}

}  // namespace augur
