// Writes the gradients of every parameter of a model, for the tests that hold them to transformers:
//
//   model_gradients MODEL OUT.safetensors [checkpoint] [aux] [shift-experts] [shards] < in.jsonl
//
// The loss is the mean over the tokens of all lines, from each one's second on, of -logprob * sin(index), so
// that no two weigh alike. aux adds the load-balancing loss; shift-experts records the routing of a first
// pass and replays it with every expert replaced by the next. The loss is stored as the tensor "loss". The
// model is saved to OUT.safetensors.model, with shards in pieces of 4 KB.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <iostream>
#include <set>
#include <string>

#include "base/json.h"
#include "formats/safetensors.h"
#include "model/forward.h"
#include "model/load.h"
#include "model/moe.h"
#include "model/save.h"
#include "ops/head/log_probs.h"

namespace augur {
namespace {

std::vector<std::vector<int32_t>> ReadSequences(std::istream& in) {
  std::vector<std::vector<int32_t>> sequences;
  for (std::string line; std::getline(in, line);) {
    sequences.push_back(ParseJson(line, "stdin").at("tokens").get<std::vector<int32_t>>());
  }
  return sequences;
}

at::Tensor Loss(const Model& model, const std::vector<std::vector<int32_t>>& sequences,
                const std::set<std::string>& flags) {
  const PackedBatch batch = PackSequences(sequences, at::Device(at::kCPU));
  ForwardOptions options;
  options.checkpoint_layers = flags.contains("checkpoint");
  options.recompute_cheap = flags.contains("recompute");
  options.fp8 = flags.contains("fp8");
  Routing routing;
  if (flags.contains("shift-experts")) {
    routing = Forward(model, batch).routing;
    for (at::Tensor& experts : routing) experts = (experts + 1).remainder(model.config.moe.experts);
    options.replay = &routing;
  }
  const ForwardOutput out = Forward(model, batch, options);
  std::vector<at::Tensor> parts;
  int64_t begin = 0;
  for (const auto& sequence : sequences) {
    const auto rows = static_cast<int64_t>(sequence.size()) - 1;
    const Head head{out.hidden.narrow(0, begin, rows), model.head, {}};
    parts.push_back(
        ComputeLogProbs(head, batch.tokens.narrow(0, begin + 1, rows).unsqueeze(1), {}).sampled());
    begin += rows + 1;
  }
  const at::Tensor scores = at::cat(parts);
  const at::Tensor loss = -(scores * at::arange(scores.size(0), at::kFloat).sin()).mean();
  return flags.contains("aux") ? loss + LoadBalancingLoss(model.config.moe, out.router_logits) : loss;
}

void Run(const std::string& directory, const std::string& path, const std::set<std::string>& flags) {
  const Model model = LoadModel(directory, at::kFloat, at::Device(at::kCPU));
  SetRequiresGrad(model, true);
  const at::Tensor loss = Loss(model, ReadSequences(std::cin), flags);
  torch::autograd::backward({loss});
  std::vector<at::Tensor> kept = {loss.detach()};
  std::vector<TensorSource> sources;
  auto add = [&](const std::string& name, const at::Tensor& tensor) {
    kept.push_back(tensor.contiguous());
    sources.push_back(
        SourceOf(name, DType::kF32, tensor.sizes().vec(),
                 {static_cast<const std::byte*>(kept.back().const_data_ptr()), tensor.nbytes()}));
  };
  add("loss", loss.detach());
  for (const StoredTensor& tensor : StoredTensors(model)) {
    const at::Tensor grad = tensor.parameter.grad();
    add(tensor.name, tensor.Part(grad.defined() ? grad : at::zeros_like(tensor.parameter.detach())));
  }
  WriteSafetensors(path, std::move(sources), {});
  SaveModel(model, path + ".model", flags.contains("shards") ? 4096 : kShardBytes);
  CopyTokenizerFiles(directory, path + ".model");
}

}  // namespace
}  // namespace augur

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  augur::Run(argv[1], argv[2], std::set<std::string>(argv + 3, argv + argc));
  return 0;
}
