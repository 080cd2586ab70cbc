#include "model/load.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/hub.h"
#include "base/json.h"
#include "base/process_group.h"
#include "base/run_directory.h"
#include "base/stop_signals.h"
#include "formats/safetensors.h"
#include "model/adapter_files.h"
#include "model/weight_cast.h"

namespace augur {
namespace {

using Weights = std::map<std::string, TensorView>;

std::optional<at::Device> device_of_host;  // where UseDevice chose another

const std::string kHead = fmt::format("{}.weight", kHeadModule.name);
const std::string kEmbedding = fmt::format("{}.weight", kEmbeddingModule.name);

// Rotation frequencies that old checkpoints carry along; transformers ignores them too.
bool IsIgnored(std::string_view name) { return name.ends_with(".rotary_emb.inv_freq"); }

void CheckTensor(const StoredTensor& expected, const Weights& weights, const std::string& where) {
  const auto found = weights.find(expected.name);
  if (found == weights.end()) {
    throw Error(where, fmt::format("the tensor {} is missing", expected.name),
                expected.name == kHead
                    ? "config.json says the head is not tied to the embedding "
                      "(tie_word_embeddings); correct it or fetch the weights again"
                    : "config.json and the weights do not belong together, or a file is absent");
  }
  const TensorView& view = found->second;
  if (view.shape != expected.Shape()) {
    throw Error(where,
                fmt::format("the tensor {} has shape [{}], but config.json says [{}]", expected.name,
                            fmt::join(view.shape, ", "), fmt::join(expected.Shape(), ", ")),
                "config.json and the weights do not belong together");
  }
  if (view.dtype != DType::kF32 && view.dtype != DType::kF16 && view.dtype != DType::kBF16) {
    throw Error(where, fmt::format("the tensor {} has dtype {}", expected.name, DTypeName(view.dtype)),
                "valid: F32, F16, BF16");
  }
}

// A tied head may be stored as well, if it says the same.
void CheckTiedHead(const Weights& weights, const std::string& where) {
  const auto head = weights.find(kHead);
  if (head == weights.end()) return;
  const TensorView& embedding = weights.at(kEmbedding);
  if (head->second.dtype != embedding.dtype || head->second.shape != embedding.shape ||
      !std::ranges::equal(head->second.bytes, embedding.bytes)) {
    throw Error(where, fmt::format("{} differs from {}, but config.json ties them", kHead, kEmbedding),
                "set tie_word_embeddings to false, or remove the head from the weights");
  }
}

void CheckAllExpected(const std::vector<StoredTensor>& expected, const Weights& weights, bool tied,
                      const std::string& where) {
  std::vector<std::string_view> names;
  for (const StoredTensor& tensor : expected) names.push_back(tensor.name);
  std::ranges::sort(names);
  for (const auto& [name, view] : weights) {
    const bool known = std::ranges::binary_search(names, std::string_view(name)) || (tied && name == kHead);
    if (!known && !IsIgnored(name)) {
      throw Error(
          where, fmt::format("unexpected tensor {}", name),
          "config.json does not account for it; check model_type, num_hidden_layers and the bias switches");
    }
  }
}

// Everything that can be wrong before a value is read; nothing is allocated for the weights yet.
void CheckWeights(const ModelConfig& config, const Weights& weights, const std::string& where) {
  const std::vector<StoredTensor> expected =
      StoredTensors(AllocateModel(config, at::kBFloat16, at::Device(at::kMeta)));
  for (const StoredTensor& tensor : expected) CheckTensor(tensor, weights, where);
  CheckAllExpected(expected, weights, config.tied_head, where);
  if (config.tied_head) CheckTiedHead(weights, where);
}

void Fill(const StoredTensor& tensor, const TensorView& from, const std::string& where) {
  const at::Tensor to = tensor.Part(tensor.parameter);
  const bool direct = to.is_cpu();
  const at::Tensor host = direct ? to : at::empty(to.sizes(), to.options().device(at::kCPU));
  if (!CastWeights(from, host)) {
    throw Error(where, fmt::format("the tensor {} holds NaN or infinite values", tensor.name),
                "the weights are damaged or overflowed when they were saved; fetch or export them again");
  }
  if (!direct) to.copy_(host);
  ReleasePages(from.bytes);
}

Model LoadMerged(const std::filesystem::path& adapter, at::ScalarType dtype, at::Device device) {
  Model model = LoadModel(BaseDirectory(adapter), dtype, device);
  ReadAdapter(adapter, &model);
  model.lora.reset();
  for (LayerWeights& layer : model.layers) {
    for (ModuleWeights& module : layer) module = {module.weight, module.bias, {}, {}, {}};
  }
  return model;
}

}  // namespace

at::ScalarType ParsePrecision(std::string_view name, std::string_view where) {
  static constexpr std::string_view kNames[] = {"fp32", "bf16"};
  if (name == kNames[0]) return at::kFloat;
  if (name == kNames[1]) return at::kBFloat16;
  throw UnknownName(where, "precision", name, kNames);
}

at::Device UseDevice(std::string_view name, std::string_view where) {
  if (name == "cpu") return at::Device(at::kCPU);
  static constexpr std::string_view kNames[] = {"cpu", "cuda", "cuda:0"};
  int index = 0;
  if (name.starts_with("cuda:")) {
    const auto [end, fault] = std::from_chars(name.data() + 5, name.data() + name.size(), index);
    if (fault != std::errc() || end != name.data() + name.size() || index < 0 || index > 127) index = -1;
  }
  if ((name != "cuda" && !name.starts_with("cuda:")) || index < 0) {
    throw UnknownName(where, "device", name, kNames);
  }
  const int ranks = ThisProcessGroup().size;
  if (name != "cuda" && ranks > 1) {
    throw Error(where, fmt::format("is {}, one GPU for all {} ranks", name, ranks),
                "write cuda or auto: each rank takes its own GPU");
  }
  const int count = at::globalContext().hasCUDA() ? at::detail::getCUDAHooks().getNumGPUs() : 0;
  if (index >= count) {
    throw Error(where, fmt::format("no device '{}' here ({} CUDA devices)", name, count),
                "use cpu, or a machine with a GPU and a build with CUDA");
  }
  const c10::impl::VirtualGuardImpl gpus(at::kCUDA);
  if (name == "cuda") return gpus.getDevice();
  const at::Device chosen(at::kCUDA, static_cast<c10::DeviceIndex>(index));
  if (!device_of_host) device_of_host = gpus.getDevice();
  gpus.setDevice(chosen);
  return chosen;
}

void RestoreDevice() {
  if (device_of_host) c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(*std::exchange(device_of_host, {}));
}

ModelConfig ReadModelConfig(const std::filesystem::path& model) {
  const std::filesystem::path directory = ModelDirectory(model.string());
  if (IsAdapter(directory)) return ReadModelConfig(BaseDirectory(directory));
  const std::filesystem::path path = directory / "config.json";
  if (!std::filesystem::is_directory(directory)) {
    throw Error(directory.string(), "no such directory",
                "give the directory that holds the model's config.json");
  }
  if (!std::filesystem::exists(path)) RefuseRunDirectory(directory);
  return ParseModelConfig(ParseJson(ReadFile(path), path.string()), path.string());
}

Model LoadModel(const std::filesystem::path& model_path, at::ScalarType dtype, at::Device device) {
  const std::filesystem::path directory = ModelDirectory(model_path.string());
  if (IsAdapter(directory)) return LoadMerged(directory, dtype, device);
  const ModelConfig config = ReadModelConfig(directory);
  const SafetensorsDirectory files(directory);
  const std::string where = directory.string();
  CheckWeights(config, files.tensors(), where);
  const Model model = AllocateModel(config, dtype, device);
  for (const StoredTensor& tensor : StoredTensors(model)) {
    CheckStop();
    Fill(tensor, files.tensors().at(tensor.name), where);
  }
  return model;
}

}  // namespace augur
