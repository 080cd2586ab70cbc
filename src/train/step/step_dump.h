// The updates of a step in files, for tests that compute them again elsewhere.
#pragma once

#include <filesystem>
#include <span>

#include "model/model.h"
#include "train/step/learner.h"

namespace augur {

// In the directory: before/ (a Hugging Face directory with the weights at the start), then for update N from
// 0 update_N.jsonl (one sample a line: prompt and response tokens, support, advantage, ...), and
// update_N.safetensors with "gradient.NAME" before clipping, "after.NAME" and the scalars "loss" and
// "grad_norm".
class StepDump {
 public:
  StepDump(const std::filesystem::path& directory, const Model& model, Optimizer& optimizer);

  void BeforeUpdate(std::span<const TrainSample> samples, const StepSums& sums);
  void AfterUpdate(const UpdateResult& result);

 private:
  const Ranks ranks_ = Ranks::World();
  const std::filesystem::path directory_;
  const Model& model_;
  Optimizer& optimizer_;
  int64_t update_ = 0;
  double loss_ = 0;
  std::vector<std::pair<std::string, at::Tensor>> gradients_;
};

}  // namespace augur
