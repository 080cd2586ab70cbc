#include "train/run_state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <fmt/ranges.h>

#include <cstring>

#include "base/error.h"
#include "base/file.h"
#include "config/read.h"
#include "config/write.h"
#include "formats/safetensors.h"
#include "train/experience_file.h"

namespace augur {
namespace {

constexpr const char* kState = "state.json";
constexpr const char* kTensors = "tensors.safetensors";
constexpr const char* kQueue = "queue.safetensors";
constexpr const char* kConfig = "config.yaml";
constexpr std::string_view kRemedy = "resume from another checkpoint (run.resume=PATH)";

DType StoredType(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBFloat16 ? DType::kBF16 : DType::kF32;
}

void SaveTensors(const std::vector<StateTensor>& state, const std::filesystem::path& path) {
  std::vector<TensorSource> sources;
  for (const StateTensor& entry : state) {
    sources.push_back({entry.name, StoredType(entry.tensor), entry.tensor.sizes().vec(),
                       [tensor = entry.tensor](const ByteSink& sink) {
                         const at::Tensor here = tensor.detach().cpu().contiguous();
                         sink({static_cast<const std::byte*>(here.const_data_ptr()), here.nbytes()});
                       }});
  }
  WriteSafetensors(path, std::move(sources), {});
}

void LoadTensors(const std::vector<StateTensor>& state, const std::filesystem::path& path) {
  const at::NoGradGuard no_grad;
  const SafetensorsFile file(path);
  if (file.tensors().size() != state.size()) {
    throw Error(path.string(),
                fmt::format("holds {} tensors, the model needs {}", file.tensors().size(), state.size()),
                kRemedy);
  }
  for (const StateTensor& entry : state) {
    const auto found = file.tensors().find(entry.name);
    if (found == file.tensors().end() || found->second.shape != entry.tensor.sizes().vec() ||
        found->second.dtype != StoredType(entry.tensor)) {
      throw Error(path.string(),
                  fmt::format("tensor \"{}\" is missing or of another shape or type", entry.name), kRemedy);
    }
    const at::Tensor here =
        at::empty_like(entry.tensor, entry.tensor.options().device(at::kCPU), at::MemoryFormat::Contiguous);
    std::memcpy(here.mutable_data_ptr(), found->second.bytes.data(), found->second.bytes.size());
    entry.tensor.copy_(here);
  }
}

Json OrNull(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

std::optional<double> FromJson(const Json& value) {
  return value.is_number() ? std::optional<double>(value.get<double>()) : std::nullopt;
}

}  // namespace

void SaveState(const RunState& state, Learner& learner, RlConfig config,
               const std::filesystem::path& directory) {
  SaveTensors(learner.optimizer().State(), directory / kTensors);
  std::vector<const Experience*> waiting;
  for (const Experience& experience : state.waiting) waiting.push_back(&experience);
  const Json queue = SaveExperiences(waiting, directory / kQueue);
  const Json json = {{"step", state.step},
                     {"position", state.position},
                     {"updates", learner.optimizer().updates()},
                     {"bad_in_row", learner.bad_in_row()},
                     {"before", OrNull(state.before)},
                     {"after", OrNull(state.after)},
                     {"train_seconds", state.train_seconds},
                     {"config_hash", ConfigHash(config)},
                     {"waiting", queue}};
  WriteFileAtomically(directory / kState, json.dump(2) + "\n");
  WriteFileAtomically(directory / kConfig, ToYaml(FieldsOf(config)));
}

RunState LoadState(const std::filesystem::path& directory, const TokenizedPrompts& prompts,
                   Learner* learner) {
  const std::filesystem::path path = directory / kState;
  const Json json = ParseJson(ReadFile(path), path.string());
  try {
    RunState state;
    state.step = json.at("step");
    state.position = json.at("position");
    state.before = FromJson(json.at("before"));
    state.after = FromJson(json.at("after"));
    state.train_seconds = json.at("train_seconds");
    LoadTensors(learner->optimizer().State(), directory / kTensors);
    learner->optimizer().Restored(json.at("updates"));
    learner->set_bad_in_row(json.at("bad_in_row"));
    for (Experience& experience : LoadExperiences(json.at("waiting"), directory / kQueue, prompts.tokens)) {
      state.waiting.push_back(std::move(experience));
    }
    return state;
  } catch (const Json::exception& fault) {
    throw Error(path.string(), fault.what(), kRemedy);
  }
}

void CheckSameConfig(const std::filesystem::path& checkpoint, const RlConfig& config) {
  if (config.run.resume_changed) return;
  const std::vector<std::string> changed = ChangedKeys(ReadRlConfig(checkpoint / kConfig), config);
  if (changed.empty()) return;
  throw Error(checkpoint.string(),
              fmt::format("was made with another configuration: {}", fmt::join(changed, ", ")),
              "set them back, go on regardless with run.resume_changed=true, or begin anew with "
              "run.resume=never");
}

}  // namespace augur
