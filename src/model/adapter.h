// Low-rank adapters (LoRA): base weights are frozen, and each adapted one stands for base + scale b a.
//
// The model's own tensors hold those sums, in its type: whoever computes with a Model, the rollout copy
// included, computes with the merged weights and needs to know nothing of adapters. After a and b have
// changed, MergeAdapters makes the sums again. The forward's gradients go to a and b (ops/layer/low_rank.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/model.h"

namespace augur {

// In place of names: every linear layer, experts included; the router is none of them.
inline constexpr std::string_view kAllLinear = "all-linear";

struct LoraOptions {
  int64_t rank = 0;
  double alpha = 32;  // scale is alpha / rank
  // Ends of the names of adapted modules, as PEFT reads them: "q_proj", "mlp.down_proj". An expert's
  // gate_proj and up_proj are one tensor and only taken together.
  std::vector<std::string> targets = {std::string(kAllLinear)};
  // Ends of the names of modules that are trained whole: norms, and an embedding or head that is not tied.
  std::vector<std::string> modules_to_save;
};

// Where the adapters of a module stand in it; the names are those of PEFT.
struct AdapterPlace {
  std::string name;
  int64_t begin_row = 0, rows = 0;
};
std::vector<AdapterPlace> AdapterPlaces(const ModuleSpec& spec);

// Gives the model new adapters that add nothing yet: a is drawn from the seed as PEFT draws it, b is zero.
// Throws Error at `where` for a name that fits no module or one that cannot be adapted.
void AddAdapters(const LoraOptions& options, uint64_t seed, std::string_view where, Model* model);

// How many numbers are trained, modules to be trained whole included, and how many the modules have whose
// first values are kept for that.
struct AdapterSize {
  int64_t trained = 0, base = 0;
  int64_t pinned_base = 0;  // of bases in pinned host memory, which torch rounds up to powers of two

  void AddBase(const ModuleSpec& spec);
};
AdapterSize SizeOfAdapters(const LoraOptions& options, const ModelConfig& config, std::string_view where);

// Whether the base of a model of so many bytes is put into host memory when it is adapted on a GPU.
bool BaseStaysOnHost(int64_t bytes);

// One more adapter of given factors, float32 [rank, in] and [rows, rank], and a module to be trained whole
// with a given value. The model's own values become the base. Throw Error at `where` where they do not fit.
void AddAdapter(size_t layer, const ModuleSpec& spec, const AdapterPlace& place, const LowRank& factors,
                std::string_view where, Model* model);
void TrainWhole(const std::string& name, const at::Tensor& value, std::string_view where, Model* model);

// Keeps the base of adapted modules in FP8 from now on, a scale per output channel, as products round it
// (ops/layer/fp8_product.h); half the memory. The model's weights are merged from that.
void RoundBaseToFp8(Model* model);

// Makes the model's weights anew from base and adapters.
void MergeAdapters(const Model& model);

// The weights without adapters, while this object lives: tensors that are there anyway, or, where the base is
// in FP8 or was put into the machine's memory for want of room on the GPU, the model's own, which are merged
// again at the end.
class BaseWeights {
 public:
  explicit BaseWeights(const Model& model);
  ~BaseWeights();
  BaseWeights(const BaseWeights&) = delete;
  BaseWeights& operator=(const BaseWeights&) = delete;
  const Model& model() const { return base_; }

 private:
  const Model& model_;
  Model base_;
  bool moved_ = false;
};

}  // namespace augur
