#include "model/adapter_files.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <regex>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/hub.h"
#include "base/json.h"
#include "formats/safetensors.h"
#include "model/adapter.h"
#include "model/weight_cast.h"

namespace augur {
namespace {

namespace fs = std::filesystem;

constexpr const char* kAdapterWeights = "adapter_model.safetensors";
constexpr const char* kAdapterPickle = "adapter_model.bin";
constexpr std::string_view kAdapterPrefix = "base_model.model.";  // before every name in the file
constexpr size_t kLongestPattern = 256;

// What an adapter's configuration may ask for that changes what it computes.
constexpr const char* kRefused[] = {"use_dora",          "use_qalora",
                                    "use_bdlora",        "fan_in_fan_out",
                                    "lora_bias",         "layer_replication",
                                    "arrow_config",      "alora_invocation_tokens",
                                    "kasa_config",       "trainable_token_indices",
                                    "monteclora_config", "velora_config"};
// First values of adapters that leave the base as it is; others take a part of it away.
constexpr const char* kInits[] = {"gaussian", "eva", "orthogonal"};

bool IsOff(const Json& value) { return value.is_null() || value == Json(false) || value.empty(); }

Json ReadAdapterConfig(const fs::path& directory) {
  const fs::path path = directory / kAdapterConfig;
  if (!fs::exists(path)) {
    throw Error(directory.string(), "holds no adapter_config.json",
                "name a directory that peft or augur saved");
  }
  Json config = ParseJson(ReadFile(path), path.string());
  if (RequireString(config, "peft_type", path.string()) != "LORA") {
    throw Error(path.string(), fmt::format("peft_type is {}", config["peft_type"].dump()), "valid: LORA");
  }
  for (const char* key : kRefused) {
    if (config.contains(key) && !IsOff(config[key])) {
      throw Error(path.string(), fmt::format("{} is not supported", key), "train plain LoRA adapters");
    }
  }
  if (const Json bias = config.value("bias", Json()); !IsOff(bias) && bias != "none") {
    throw Error(path.string(), "trained biases are not supported", "valid: \"bias\": \"none\"");
  }
  if (const Json init = config.value("init_lora_weights", Json(true)); init.is_string()) {
    if (std::ranges::find(kInits, init.get<std::string>()) == std::end(kInits)) {
      throw Error(path.string(), fmt::format("init_lora_weights {} changes the base's weights", init.dump()),
                  "convert it to a plain adapter with peft first");
    }
  }
  return config;
}

// rank_pattern or alpha_pattern: PEFT takes the first whose regular expression is the end of a module's name.
class Patterns {
 public:
  Patterns(const Json& config, const char* key, const std::string& where) {
    if (!config.contains(key) || !config[key].is_object()) return;
    for (const auto& [pattern, value] : config[key].items()) {
      try {
        if (pattern.size() > kLongestPattern) throw std::regex_error(std::regex_constants::error_complexity);
        patterns_.emplace_back(std::regex("(.*\\.)?(" + pattern + ")"), value.get<double>());
      } catch (const std::regex_error&) {
        throw Error(where, fmt::format("{} '{}' cannot be read", key, pattern.substr(0, kLongestPattern)),
                    "name modules; of Python's regular expressions the plain ones are known");
      }
    }
  }

  double Pick(const std::string& name, double otherwise) const {
    for (const auto& [pattern, value] : patterns_) {
      if (std::regex_match(name, pattern)) return value;
    }
    return otherwise;
  }
  bool AllAtMost(double limit) const {
    return std::ranges::all_of(patterns_, [&](const auto& one) { return std::abs(one.second) <= limit; });
  }

 private:
  std::vector<std::pair<std::regex, double>> patterns_;
};

// The numbers of an adapter_config.json.
class AdapterScales {
 public:
  AdapterScales(const Json& config, std::string where) : where_(std::move(where)) {
    try {
      rank_ = config.at("r");
      alpha_ = config.at("lora_alpha");
      root_ = config.value("use_rslora", false);
      ranks_.emplace(config, "rank_pattern", where_);
      alphas_.emplace(config, "alpha_pattern", where_);
      if (config.contains("target_parameters") && config["target_parameters"].is_array()) {
        parameters_ = config["target_parameters"].get<std::vector<std::string>>();
      }
    } catch (const Json::exception& fault) {
      throw Error(where_, fault.what(), "take a file that peft saved");
    }
    constexpr double kMost = std::numeric_limits<float>::max();
    if (rank_ < 1 || !(std::abs(alpha_) <= kMost) || !alphas_->AllAtMost(kMost)) {
      throw Error(where_, "r, lora_alpha or alpha_pattern is out of range", "correct it");
    }
  }

  int64_t rank() const { return rank_; }
  double alpha() const { return alpha_; }
  // Whether PEFT adapts it as a parameter, by the end of its name.
  bool IsParameter(const std::string& name) const {
    return std::ranges::any_of(
        parameters_, [&](const std::string& end) { return name == end || name.ends_with("." + end); });
  }
  // The scale of factors of that rank, by the first of the names that PEFT may know the module by under which
  // the configuration has this rank. Throws Error where it has another under all.
  double Of(const std::vector<std::string>& names, int64_t rank) const {
    const auto width = static_cast<double>(rank), otherwise = static_cast<double>(rank_);
    const auto name =
        std::ranges::find_if(names, [&](const auto& one) { return ranks_->Pick(one, otherwise) == width; });
    if (name == names.end()) {
      throw Error(where_,
                  fmt::format("{} has rank {} here and {} in {}", names[0], ranks_->Pick(names[0], otherwise),
                              rank, kAdapterWeights),
                  "correct r or rank_pattern");
    }
    return alphas_->Pick(*name, alpha_) / (root_ ? std::sqrt(width) : width);
  }

 private:
  std::string where_;
  int64_t rank_ = 0;
  double alpha_ = 0;
  bool root_ = false;  // use_rslora
  std::optional<Patterns> ranks_, alphas_;
  std::vector<std::string> parameters_;
};

class AdapterReader {
 public:
  explicit AdapterReader(const fs::path& path) : file_(path), where_(path.string()) {
    for (const auto& [name, view] : file_.tensors()) {
      const bool known = name.starts_with(kAdapterPrefix);
      unread_.insert(known ? name.substr(kAdapterPrefix.size()) : name);
      if (known) continue;
      throw Error(where_, fmt::format("unexpected tensor {}", name), "take a file that peft saved");
    }
  }

  bool Has(const std::string& name) const { return unread_.contains(name); }
  const std::set<std::string>& unread() const { return unread_; }
  const std::string& where() const { return where_; }

  // How many numbers each tensor has.
  std::map<std::string, int64_t> Sizes() const {
    std::map<std::string, int64_t> sizes;
    for (const auto& [name, view] : file_.tensors()) {
      const std::vector<int64_t>& shape = view.shape;
      sizes[name] = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
    }
    return sizes;
  }

  // Whether factors lead from `in` to `out`: of two modules of experts under one name it is one's.
  bool Fits(const std::string& stem, int64_t in, int64_t out) const {
    const std::vector<int64_t> a = ShapeOf(stem + "A.weight"), b = ShapeOf(stem + "B.weight");
    return !a.empty() && a.back() == in && (b.empty() || b.front() == out);
  }

  // In float32.
  at::Tensor Take(const std::string& name) {
    const auto found = file_.tensors().find(std::string(kAdapterPrefix) + name);
    if (found == file_.tensors().end()) {
      throw Error(where_, fmt::format("the tensor {} is missing", name), "take a file that peft saved");
    }
    const TensorView& view = found->second;
    if (view.dtype != DType::kF32 && view.dtype != DType::kF16 && view.dtype != DType::kBF16) {
      throw Error(where_, fmt::format("the tensor {} has dtype {}", name, DTypeName(view.dtype)),
                  "valid: F32, F16, BF16");
    }
    const at::Tensor tensor = at::empty(view.shape, at::kFloat);
    if (!CastWeights(view, tensor)) {
      throw Error(where_, fmt::format("the tensor {} holds NaN or infinite values", name), "train it anew");
    }
    unread_.erase(name);
    return tensor;
  }

 private:
  // Empty where there is no such tensor.
  std::vector<int64_t> ShapeOf(const std::string& name) const {
    const auto found = file_.tensors().find(std::string(kAdapterPrefix) + name);
    return found == file_.tensors().end() ? std::vector<int64_t>{} : found->second.shape;
  }

  SafetensorsFile file_;
  std::string where_;
  std::set<std::string> unread_;
};

// The names of an adapter's tensors without "A.weight" and "B.weight". Of a layer's experts, which PEFT wraps
// one parameter after the other, the first to be wrapped stands innermost; `both`: the two of them have
// adapters.
std::string StemOf(size_t layer, const ModuleSpec& spec, const AdapterPlace& place, bool both) {
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  if (spec.experts == 0) return prefix + place.name + ".lora_";
  return prefix +
         (spec.slot == kExpertsGateUp && both ? "mlp.experts.base_layer.lora_" : "mlp.experts.lora_");
}

void CheckFactors(const at::Tensor& a, const at::Tensor& b, int64_t experts, const std::string& stem,
                  const std::string& where) {
  const int64_t count = std::max<int64_t>(experts, 1);
  if (a.dim() == 2 && b.dim() == 2 && a.size(0) == b.size(1) && a.size(0) > 0 && a.size(0) % count == 0)
    return;
  throw Error(where, fmt::format("{}A and {}B are no pair of factors", stem, stem),
              "take an adapter of this model");
}

// What rank_pattern and alpha_pattern are matched with: PEFT takes experts and, since transformers 5, the
// router for parameters.
std::string PatternName(size_t layer, size_t slot, const std::string& module) {
  return fmt::format("model.layers.{}.{}{}", layer, module, slot == kRouter ? ".weight" : "");
}

void ReadPlace(size_t layer, const ModuleSpec& spec, const AdapterPlace& place, const std::string& stem,
               const AdapterScales& scales, AdapterReader& reader, Model* model) {
  at::Tensor a = reader.Take(stem + "A.weight"), b = reader.Take(stem + "B.weight");
  CheckFactors(a, b, spec.experts, stem, reader.where());
  const int64_t rank = a.size(0) / std::max<int64_t>(spec.experts, 1);
  if (spec.experts > 0) {  // [experts · rank, in], [out, rank · experts] with the expert's index the faster
    a = a.view({spec.experts, rank, a.size(1)});
    b = b.view({b.size(0), rank, spec.experts}).permute({2, 0, 1}).contiguous();
  }
  std::vector<std::string> names = {PatternName(layer, spec.slot, place.name)};
  if (spec.experts == 0 && scales.IsParameter(names[0] + ".weight")) names[0] += ".weight";
  if (spec.slot == kRouter) names.push_back(fmt::format("model.layers.{}.{}", layer, place.name));
  const double scale = scales.Of(names, rank);
  AddAdapter(layer, spec, place, {"", 0, a, b, scale}, reader.where(), model);
}

// Whether the file has factors for it; `both`: for the two modules of a layer's experts.
bool IsPlace(const ModuleSpec& spec, const AdapterPlace& place, const std::string& stem, bool both,
             const AdapterReader& reader) {
  return reader.Has(stem + "A.weight") &&
         (spec.experts == 0 || both || reader.Fits(stem, spec.in, place.rows));
}

void ReadLayer(size_t layer, const AdapterScales& scales, AdapterReader& reader, Model* model) {
  const std::string experts = fmt::format("model.layers.{}.mlp.experts.", layer);
  const bool both = reader.Has(experts + "base_layer.lora_A.weight");
  for (const ModuleSpec& spec : LayerTable(model->config, static_cast<int64_t>(layer))) {
    for (const AdapterPlace& place : AdapterPlaces(spec)) {
      const std::string stem = StemOf(layer, spec, place, both);
      if (IsPlace(spec, place, stem, both, reader))
        ReadPlace(layer, spec, place, stem, scales, reader, model);
    }
  }
}

// Factors in the form of the file.
struct FileTensor {
  std::string name;
  at::Tensor tensor;
};

std::vector<FileTensor> FileTensors(const Model& model) {
  std::vector<FileTensor> tensors;
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const LayerWeights& layer = model.layers[i];
    const bool both = !layer[kExpertsGateUp].adapters.empty() && !layer[kExpertsDown].adapters.empty();
    for (const ModuleSpec& spec : LayerTable(model.config, static_cast<int64_t>(i))) {
      for (const LowRank& low : layer[spec.slot].adapters) {
        const std::string stem = StemOf(i, spec, {low.name, 0, 0}, both);
        const at::Tensor a = low.a.detach(), b = low.b.detach();
        tensors.push_back({stem + "A.weight", spec.experts > 0 ? a.flatten(0, 1) : a});
        tensors.push_back({stem + "B.weight", spec.experts > 0 ? b.permute({1, 2, 0}).flatten(1, 2) : b});
      }
    }
  }
  for (const WholeModule& module : model.lora->whole) {
    tensors.push_back({module.name + ".weight", module.weight.detach()});
  }
  return tensors;
}

std::string Escaped(const std::string& name) {
  std::string text;
  for (const char c : name) text += c == '.' ? "\\." : std::string(1, c);
  return text;
}

// As peft finds it: a directory, or the name in the hub.
Json BaseName(const fs::path& base, const std::optional<HubModel>& hub) {
  if (hub) return hub->name;
  return base.empty() ? Json() : Json(fs::absolute(base).lexically_normal().string());
}

Json AdapterConfigOf(const Model& model, const fs::path& base) {
  const LoraState& lora = *model.lora;
  Json modules = Json::array(), parameters = Json::array(), whole = Json::array();
  Json ranks = Json::object(), alphas = Json::object();
  for (size_t i = 0; i < model.layers.size(); ++i) {
    for (size_t slot = 0; slot < kSlots; ++slot) {
      for (const LowRank& low : model.layers[i][slot].adapters) {
        const std::string pattern = Escaped(PatternName(i, slot, low.name));
        (low.a.dim() == 3 ? parameters : modules).push_back(fmt::format("model.layers.{}.{}", i, low.name));
        const int64_t rank = low.a.size(-2);
        const double alpha = low.scale * static_cast<double>(rank);
        if (rank != lora.rank) ranks[pattern] = rank;
        if (std::abs(alpha - lora.alpha) > 1e-9 * std::abs(lora.alpha)) alphas[pattern] = alpha;
      }
    }
  }
  for (const WholeModule& module : lora.whole) whole.push_back(module.name);
  const std::optional<HubModel> hub = AsHubModel(base.string());
  const auto or_null = [](const Json& list) { return list.empty() ? Json() : list; };
  return {{"peft_type", "LORA"},
          {"task_type", "CAUSAL_LM"},
          {"base_model_name_or_path", BaseName(base, hub)},
          {"revision", hub && !hub->revision.empty() ? Json(hub->revision) : Json()},
          {"r", lora.rank},
          {"lora_alpha", lora.alpha},
          {"lora_dropout", 0.0},
          {"bias", "none"},
          {"target_modules", modules},
          {"target_parameters", or_null(parameters)},
          {"modules_to_save", or_null(whole)},
          {"rank_pattern", ranks},
          {"alpha_pattern", alphas},
          {"fan_in_fan_out", false},
          {"init_lora_weights", true},
          {"use_dora", false},
          {"use_rslora", false},
          {"inference_mode", true}};
}

}  // namespace

bool IsAdapter(const fs::path& directory) {
  return fs::exists(directory / kAdapterConfig) && !fs::exists(directory / "config.json");
}

std::string BaseModel(const fs::path& directory) {
  const Json config = ReadAdapterConfig(directory);
  const Json base = config.value("base_model_name_or_path", Json());
  const std::string name = base.is_string() ? base.get<std::string>() : std::string();
  if (fs::exists(fs::path(name) / "config.json")) return name;
  if (!name.empty() && fs::exists(directory / name / "config.json")) return (directory / name).string();
  if (AsHubModel(name)) {
    const Json revision = config.value("revision", Json());
    return revision.is_string() ? fmt::format("{}@{}", name, revision.get<std::string>()) : name;
  }
  throw Error((directory / kAdapterConfig).string(),
              fmt::format("its base_model_name_or_path, {}, is no model's directory here", base.dump()),
              "correct it, or name the base as model.path and this directory as lora.adapter");
}

fs::path BaseDirectory(const fs::path& directory) {
  return IsAdapter(directory) ? fs::path(ModelDirectory(BaseModel(directory))) : directory;
}

void ReadAdapter(const fs::path& directory, Model* model) {
  const at::NoGradGuard no_grad;
  const AdapterScales scales(ReadAdapterConfig(directory), (directory / kAdapterConfig).string());
  if (!fs::exists(directory / kAdapterWeights)) {
    if (fs::exists(directory / kAdapterPickle)) {
      throw Error((directory / kAdapterPickle).string(), "is a pickle, which can run code when it is read",
                  "save the adapter as safetensors");
    }
    throw Error(directory.string(), "holds no adapter_model.safetensors", "name a directory that peft saved");
  }
  AdapterReader reader(directory / kAdapterWeights);
  model->lora = LoraState{scales.rank(), scales.alpha(), {}};
  for (size_t i = 0; i < model->layers.size(); ++i) ReadLayer(i, scales, reader, model);
  const std::set<std::string> rest = reader.unread();
  for (const std::string& name : rest) {
    if (name.find(".lora_") != std::string::npos || !name.ends_with(".weight")) {
      const bool by_expert =
          name.find(".mlp.experts.") != std::string::npos && name.find("_proj.lora_") != std::string::npos;
      throw Error(reader.where(), fmt::format("{} belongs to no linear layer of the model", name),
                  by_expert
                      ? "adapters of single experts are of an older layout: load them with peft 0.21 or "
                        "newer with transformers 5 and save them again"
                      : "take an adapter of this model");
    }
    TrainWhole(name.substr(0, name.size() - std::string_view(".weight").size()), reader.Take(name),
               reader.where(), model);
  }
  MergeAdapters(*model);
}

AdapterSize SizeOfAdapter(const fs::path& directory, const ModelConfig& config) {
  AdapterSize size;
  if (!fs::exists(directory / kAdapterWeights)) return size;
  const AdapterReader reader(directory / kAdapterWeights);
  for (const auto& [name, numbers] : reader.Sizes()) {
    size.trained += numbers;
    if (name.find(".lora_") == std::string::npos) size.base += numbers;
  }
  for (int64_t i = 0; i < config.layers; ++i) {
    const auto layer = static_cast<size_t>(i);
    const bool both = reader.Has(fmt::format("model.layers.{}.mlp.experts.base_layer.lora_A.weight", i));
    for (const ModuleSpec& spec : LayerTable(config, i)) {
      const bool adapted = std::ranges::any_of(AdapterPlaces(spec), [&](const AdapterPlace& place) {
        return IsPlace(spec, place, StemOf(layer, spec, place, both), both, reader);
      });
      if (adapted) size.AddBase(spec);
    }
  }
  return size;
}

void SaveAdapter(const Model& model, const fs::path& base, const fs::path& directory) {
  std::error_code fault;
  fs::create_directories(directory, fault);
  if (fault) throw Error(directory.string(), "cannot make the directory: " + fault.message(), "");
  std::vector<TensorSource> sources;
  for (const FileTensor& entry : FileTensors(model)) {
    sources.push_back({std::string(kAdapterPrefix) + entry.name, StoredType(entry.tensor),
                       entry.tensor.sizes().vec(), [tensor = entry.tensor](const ByteSink& sink) {
                         const at::Tensor host = tensor.cpu().contiguous();
                         sink({static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()});
                       }});
  }
  WriteSafetensors(directory / kAdapterWeights, std::move(sources), {{"format", "pt"}});
  WriteFileAtomically(directory / kAdapterConfig, AdapterConfigOf(model, base).dump(2) + "\n");
}

void CopyAdapter(const fs::path& from, const fs::path& to) {
  std::error_code fault;
  fs::create_directories(to, fault);
  if (fault) throw Error(to.string(), "cannot make the directory: " + fault.message(), "");
  for (const char* name : {kAdapterWeights, kAdapterConfig})
    WriteFileAtomically(to / name, ReadFile(from / name));
}

}  // namespace augur
