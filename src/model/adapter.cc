#include "model/adapter.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/random.h"
#include "ops/layer/fp8_product.h"
#include "ops/typed_data.h"

namespace augur {
namespace {

constexpr uint64_t kAdapterStream = 0x6C6F726100000000;  // "lora": apart from other uses of the same seed
// A larger base is kept in host memory: a GPU that has no room for two copies reads it from there,
// in a second or two of each update.
constexpr int64_t kMostBaseOnGpu = int64_t{32} << 30;
constexpr int64_t kExpertsAtOnce = 16;  // that are merged together, in float32

// The draws of torch's kaiming_uniform_(a = sqrt(5)), which PEFT takes: uniform within 1 / sqrt(inputs).
at::Tensor DrawA(const std::vector<int64_t>& shape, uint64_t seed, uint64_t tensor) {
  const at::Tensor values = at::empty(shape, at::kFloat);
  auto* to = Data<float>(values);
  const double bound = 1 / std::sqrt(static_cast<double>(shape.back()));
  for (int64_t i = 0; i < values.numel(); i += 4) {
    const Philox random = Philox::At(seed, static_cast<uint64_t>(i), kAdapterStream + tensor);
    for (int64_t k = 0; k < std::min<int64_t>(4, values.numel() - i); ++k) {
      to[i + k] = static_cast<float>(bound * (2 * double{random.Uniform(static_cast<int>(k))} - 1));
    }
  }
  return values;
}

bool EndsWith(const std::string& module, const std::string& end) {
  return module == end || module.ends_with("." + end);
}

// Whether the module is meant by one of the names; those that mean it are struck off `unused`.
bool IsNamed(const std::string& module, const std::vector<std::string>& names,
             std::set<std::string>* unused) {
  bool named = false;
  for (const std::string& name : names) {
    if (!EndsWith(module, name)) continue;
    unused->erase(name);
    named = true;
  }
  return named;
}

bool IsTargeted(const ModuleSpec& spec, const AdapterPlace& place, const std::string& layer,
                const std::vector<std::string>& targets, std::set<std::string>* unused,
                std::string_view where) {
  bool all = false;
  if (std::ranges::find(targets, kAllLinear) != targets.end()) {
    unused->erase(std::string(kAllLinear));
    all = IsLinear(spec.role);
  }
  if (IsNamed(layer + place.name, targets, unused)) return true;
  if (spec.slot != kExpertsGateUp) return all;
  const bool gate = IsNamed(layer + "mlp.experts.gate_proj", targets, unused);
  const bool up = IsNamed(layer + "mlp.experts.up_proj", targets, unused);
  if (gate != up && !all) {
    throw Error(where, "names one of gate_proj and up_proj, which experts hold as one tensor",
                "name both, or neither");
  }
  return gate || all;
}

// f(name, role, tensor) of every module that may be trained whole.
template <typename F>
void ForEachWhole(Model* model, F f) {
  const auto outer = [&](const OuterModule& module, at::Tensor* weight) {
    f(std::string(module.name), module.role, weight);
  };
  outer(kEmbeddingModule, &model->embedding);
  for (size_t i = 0; i < model->layers.size(); ++i) {
    for (const ModuleSpec& spec : LayerTable(model->config, static_cast<int64_t>(i))) {
      if (spec.role != Role::kNorm) continue;
      f(fmt::format("model.layers.{}.{}", i, spec.parts.front().name), spec.role,
        &model->layers[i][spec.slot].weight);
    }
  }
  outer(kFinalNormModule, &model->norm);
  if (!model->config.tied_head) outer(kHeadModule, &model->head);
}

// The module's weight becomes its base, with or without the adapters.
void MergeModule(const ModuleWeights& module, bool adapters) {
  const int64_t experts = module.weight.dim() == 3 ? module.weight.size(0) : 0;
  const int64_t step = experts == 0 ? 1 : std::min(experts, kExpertsAtOnce);
  for (int64_t e = 0; e < std::max<int64_t>(experts, 1); e += step) {
    const auto part = [&](const at::Tensor& x) {
      return experts == 0 ? x.detach() : x.detach().narrow(0, e, std::min(step, experts - e));
    };
    const at::Tensor sum = part(module.base).to(module.weight.device()).to(at::kFloat, false, /*copy=*/true);
    if (module.base_scale.defined()) sum.mul_(part(module.base_scale).unsqueeze(-1));
    for (const LowRank& low : adapters ? module.adapters : std::vector<LowRank>()) {
      const at::Tensor a = part(low.a), b = part(low.b);
      sum.narrow(-2, low.begin_row, b.size(-2)).add_(at::matmul(b, a), low.scale);
    }
    part(module.weight).copy_(sum);
  }
}

template <typename F>
void ForEachAdapted(const Model& model, F f) {
  for (size_t i = 0; i < model.layers.size(); ++i) {
    for (size_t slot = 0; slot < kSlots; ++slot) {
      if (!model.layers[i][slot].adapters.empty()) f(i, slot, model.layers[i][slot]);
    }
  }
}

int64_t WeightBytes(const Model& model) {
  int64_t bytes = 0;
  for (const at::Tensor& parameter : Parameters(model)) bytes += static_cast<int64_t>(parameter.nbytes());
  return bytes;
}

// The model's value from now on changes with training; what it was stays as the base.
at::Tensor KeepBase(const at::Tensor& weight, bool on_host) {
  if (!on_host) return weight.detach().clone();
  const at::Tensor host = at::empty(weight.sizes(), weight.options().device(at::kCPU).pinned_memory(true));
  return host.copy_(weight.detach());
}

void CheckAllUsed(const std::set<std::string>& unused, const Model& model, std::string_view where) {
  if (unused.empty()) return;
  std::set<std::string> known = {std::string(kAllLinear)};
  for (size_t i = 0; i < model.layers.size(); ++i) {
    for (const ModuleSpec& spec : LayerTable(model.config, static_cast<int64_t>(i))) {
      for (const AdapterPlace& place : AdapterPlaces(spec)) {
        known.insert(place.name.substr(place.name.rfind('.') + 1));
      }
    }
  }
  throw Error(where, fmt::format("'{}' is no linear layer of the model", *unused.begin()),
              fmt::format("valid: {}", fmt::join(known, ", ")));
}

}  // namespace

std::vector<AdapterPlace> AdapterPlaces(const ModuleSpec& spec) {
  if (spec.role == Role::kNorm) return {};
  if (spec.slot == kExpertsGateUp) return {{"mlp.experts.gate_up_proj", 0, spec.rows()}};
  if (spec.slot == kExpertsDown) return {{"mlp.experts.down_proj", 0, spec.rows()}};
  std::vector<AdapterPlace> places;
  int64_t begin = 0;
  for (const StoredModule& part : spec.parts) {
    places.push_back({part.name, begin, part.rows});
    begin += part.rows;
  }
  return places;
}

void AddAdapter(size_t layer, const ModuleSpec& spec, const AdapterPlace& place, const LowRank& factors,
                std::string_view where, Model* model) {
  const at::NoGradGuard no_grad;
  const at::Tensor &a = factors.a, &b = factors.b;
  std::vector<int64_t> a_shape = {a.size(-2), spec.in}, b_shape = {place.rows, a.size(-2)};
  if (spec.experts > 0) {
    a_shape.insert(a_shape.begin(), spec.experts);
    b_shape.insert(b_shape.begin(), spec.experts);
  }
  if (a.sizes() != at::IntArrayRef(a_shape) || b.sizes() != at::IntArrayRef(b_shape)) {
    throw Error(where, fmt::format("the adapter of {} does not fit the model's shape", place.name),
                "take an adapter of this model");
  }
  ModuleWeights& module = model->layers[layer][spec.slot];
  const at::Device device = module.weight.device();
  module.adapters.push_back({place.name, place.begin_row, a.to(device), b.to(device), factors.scale});
  if (module.base.defined()) return;
  module.base = KeepBase(module.weight, device.is_cuda() && BaseStaysOnHost(WeightBytes(*model)));
}

void TrainWhole(const std::string& name, const at::Tensor& value, std::string_view where, Model* model) {
  const at::NoGradGuard no_grad;
  bool found = false;
  ForEachWhole(model, [&](const std::string& known, Role role, at::Tensor* weight) {
    if (known != name) return;
    found = true;
    if (role == Role::kEmbedding && model->config.tied_head) {
      throw Error(where, "the embedding, which is the head too, cannot be trained together with adapters",
                  "leave it out");
    }
    model->lora->whole.push_back({name, *weight, weight->detach().clone(), role});
    if (!value.defined()) return;
    if (value.sizes() != weight->sizes()) {
      throw Error(where, fmt::format("the size of {} is not the model's", name),
                  "take an adapter of this model");
    }
    weight->copy_(value);
  });
  if (!found) {
    throw Error(where, fmt::format("{} is no norm, embedding or head of the model", name),
                "only those can be trained whole");
  }
}

void AddAdapters(const LoraOptions& options, uint64_t seed, std::string_view where, Model* model) {
  const at::NoGradGuard no_grad;
  model->lora = LoraState{options.rank, options.alpha, {}};
  std::set<std::string> unused(options.targets.begin(), options.targets.end());
  uint64_t index = 0;
  for (size_t i = 0; i < model->layers.size(); ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i);
    for (const ModuleSpec& spec : LayerTable(model->config, static_cast<int64_t>(i))) {
      for (const AdapterPlace& place : AdapterPlaces(spec)) {
        ++index;
        if (!IsTargeted(spec, place, layer, options.targets, &unused, where)) continue;
        std::vector<int64_t> a = {options.rank, spec.in}, b = {place.rows, options.rank};
        if (spec.experts > 0) {
          a.insert(a.begin(), spec.experts);
          b.insert(b.begin(), spec.experts);
        }
        const double scale = options.alpha / static_cast<double>(options.rank);
        AddAdapter(i, spec, place, {"", 0, DrawA(a, seed, index), at::zeros(b, at::kFloat), scale}, where,
                   model);
      }
    }
  }
  CheckAllUsed(unused, *model, where);
  std::vector<std::string> whole;
  unused = {options.modules_to_save.begin(), options.modules_to_save.end()};
  ForEachWhole(model, [&](const std::string& name, Role, at::Tensor*) {
    if (IsNamed(name, options.modules_to_save, &unused)) whole.push_back(name);
  });
  if (!unused.empty()) {
    throw Error("lora.modules_to_save",
                fmt::format("no norm, embedding or head is called '{}'", *unused.begin()),
                "name them by the ends of their names: norm, input_layernorm, lm_head");
  }
  for (const std::string& name : whole) TrainWhole(name, {}, "lora.modules_to_save", model);
}

void AdapterSize::AddBase(const ModuleSpec& spec) {
  const int64_t elements = spec.rows() * spec.in * std::max<int64_t>(spec.experts, 1);
  base += elements;
  pinned_base += static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(elements)));
}

AdapterSize SizeOfAdapters(const LoraOptions& options, const ModelConfig& config, std::string_view where) {
  AdapterSize size;
  int64_t widest = 0;  // the largest rank that a matrix can have
  std::set<std::string> unused;
  for (int64_t i = 0; i < config.layers; ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i);
    for (const ModuleSpec& spec : LayerTable(config, i)) {
      const int64_t matrices = std::max<int64_t>(spec.experts, 1);
      bool adapted = false;
      for (const AdapterPlace& place : AdapterPlaces(spec)) {
        if (!IsTargeted(spec, place, layer, options.targets, &unused, where)) continue;
        adapted = true;
        widest = std::max(widest, std::min(spec.in, place.rows));
        size.trained += options.rank * (spec.in + place.rows) * matrices;
      }
      if (adapted) size.AddBase(spec);
    }
  }
  if (widest > 0 && options.rank > widest) {
    throw Error("lora.rank",
                fmt::format("is {}, and no matrix that it adapts has a rank above {}", options.rank, widest),
                "take a smaller one, 8 to 64 are usual, or lora.rank=0 to train every weight");
  }
  Model shape = AllocateModel(config, at::kBFloat16, at::Device(at::kMeta));
  ForEachWhole(&shape, [&](const std::string& name, Role, const at::Tensor* weight) {
    if (!IsNamed(name, options.modules_to_save, &unused)) return;
    size.trained += weight->numel();
    size.base += weight->numel();
  });
  return size;
}

bool BaseStaysOnHost(int64_t bytes) { return bytes > kMostBaseOnGpu; }

void RoundBaseToFp8(Model* model) {
  const at::NoGradGuard no_grad;
  ForEachAdapted(*model, [&](size_t i, size_t slot, const ModuleWeights& from) {
    const Fp8Rows rounded = RoundRowsToFp8(from.base.to(from.weight.device()));
    ModuleWeights& module = model->layers[i][slot];
    const bool on_host = from.weight.is_cuda() && from.base.is_cpu();
    module.base = on_host ? KeepBase(rounded.values, true) : rounded.values;
    module.base_scale = rounded.scale;
  });
  MergeAdapters(*model);
}

void MergeAdapters(const Model& model) {
  const at::NoGradGuard no_grad;
  ForEachAdapted(model, [](size_t, size_t, const ModuleWeights& module) { MergeModule(module, true); });
}

BaseWeights::BaseWeights(const Model& model) : model_(model), base_(model) {
  const at::NoGradGuard no_grad;
  base_.lora.reset();
  ForEachAdapted(model, [&](size_t i, size_t slot, const ModuleWeights& module) {
    ModuleWeights& to = base_.layers[i][slot];
    to.adapters.clear();
    if (module.base.device() == module.weight.device() && !module.base_scale.defined()) {
      to.weight = module.base;
    } else {
      moved_ = true;
      to.weight = module.weight.detach();
      MergeModule(module, /*adapters=*/false);
    }
  });
  ForEachWhole(&base_, [&](const std::string& name, Role, at::Tensor* weight) {
    for (const WholeModule& whole : model.lora->whole) {
      if (whole.name == name) *weight = whole.base;
    }
  });
}

BaseWeights::~BaseWeights() {
  if (moved_) MergeAdapters(model_);
}

}  // namespace augur
