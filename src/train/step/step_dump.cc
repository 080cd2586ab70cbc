#include "train/step/step_dump.h"

#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <cmath>
#include <map>

#include "base/bytes.h"
#include "base/file.h"
#include "base/json.h"
#include "formats/safetensors.h"
#include "model/adapter_files.h"
#include "model/save.h"

namespace augur {
namespace {

Json ToJson(const TrainSample& sample) {
  const Rollout& rollout = *sample.rollout;
  Json logprobs = Json::array();  // -inf, which JSON lacks, is null
  for (const float value : sample.anchor.empty() ? rollout.support.logprobs : sample.anchor) {
    logprobs.push_back(std::isfinite(value) ? Json(value) : Json());
  }
  Json sampled = Json::array();
  for (int64_t t = 0; t < sample.tokens(); ++t) {
    sampled.push_back(rollout.support.logprobs[static_cast<size_t>(t * rollout.support.columns)]);
  }
  return {{"prompt", rollout.prompt_tokens},
          {"response", rollout.tokens},
          {"columns", rollout.support.columns},
          {"support_ids", rollout.support.ids},
          {"support_logprobs", logprobs},  // those it is measured from: recomputed ones where asked for
          {"sampled_logprobs", sampled},
          {"routing", rollout.routing.experts},
          {"advantage", sample.advantage},
          {"reference", sample.reference},
          {"importance", sample.importance},
          {"key", rollout.prompt},
          {"sample", rollout.sample}};
}

void WriteTensors(const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                  const std::filesystem::path& path) {
  std::vector<TensorSource> sources;
  std::vector<at::Tensor> kept;
  for (const auto& [name, tensor] : tensors) {
    kept.push_back(tensor.detach().cpu().to(at::kFloat).contiguous());
    sources.push_back(
        SourceOf(name, DType::kF32, kept.back().sizes().vec(),
                 {static_cast<const std::byte*>(kept.back().const_data_ptr()), kept.back().nbytes()}));
  }
  WriteSafetensors(path, std::move(sources), {});
}

// Of all ranks' samples, in the order of the minibatch.
std::string AllLines(std::span<const TrainSample> samples, const Ranks& ranks) {
  ByteWriter mine;
  for (const TrainSample& sample : samples) {
    mine.Put(sample.place);
    mine.Put(ToJson(sample).dump() + "\n");
  }
  std::map<size_t, std::string> lines;
  for (const std::string& bytes : ranks.GatherBytes(mine.bytes())) {
    for (ByteReader in(bytes); !in.done();) {
      const auto place = in.Next<size_t>();
      in.Get(&lines[place]);
    }
  }
  std::string all;
  for (const auto& [place, line] : lines) all += line;
  return all;
}

}  // namespace

StepDump::StepDump(const std::filesystem::path& directory, const Model& model, Optimizer& optimizer)
    : directory_(directory), model_(model), optimizer_(optimizer) {
  if (!ranks_.first()) return;
  SaveModel(model, directory / "before");
  if (model.lora) SaveAdapter(model, "", directory / "before_adapter");
}

void StepDump::BeforeUpdate(std::span<const TrainSample> samples, const StepSums& sums) {
  const std::string lines = AllLines(samples, ranks_);
  if (!ranks_.first()) return;
  WriteFileAtomically(directory_ / fmt::format("update_{}.jsonl", update_), lines);
  loss_ = sums.sums[kSumLoss];
  gradients_.clear();
  const std::vector<at::Tensor> parameters = TrainedParameters(model_);
  for (const StoredTensor& stored : TrainedTensors(model_)) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (!parameters[i].is_same(stored.parameter)) continue;
      const at::Tensor& gradient = optimizer_.gradients()[i];
      gradients_.emplace_back(
          "gradient." + stored.name,
          stored.Part(gradient.defined() ? gradient : at::zeros_like(parameters[i].detach())).clone());
    }
  }
}

void StepDump::AfterUpdate(const UpdateResult& result) {
  if (!ranks_.first()) return;
  std::vector<std::pair<std::string, at::Tensor>> tensors = std::move(gradients_);
  for (const StateTensor& state : optimizer_.State()) {
    if (state.name.starts_with("master."))
      tensors.emplace_back("after." + state.name.substr(7), state.tensor);
  }
  tensors.emplace_back("loss", at::scalar_tensor(loss_).view({1}));
  tensors.emplace_back("grad_norm", at::scalar_tensor(result.grad_norm).view({1}));
  WriteTensors(tensors, directory_ / fmt::format("update_{}.safetensors", update_));
  ++update_;
}

}  // namespace augur
