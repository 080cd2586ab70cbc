#include "train/checkpoint/export.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/run_directory.h"
#include "base/tell.h"
#include "model/adapter_files.h"
#include "model/load.h"
#include "model/save.h"
#include "model/weight_cast.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/state_tensors.h"

namespace augur {
namespace {

namespace fs = std::filesystem;

void RequireEmpty(const fs::path& out) {
  std::error_code none;
  if (!fs::exists(out, none)) return;
  if (!fs::is_directory(out, none)) throw Error(out.string(), "is a file", "name a new directory");
  if (!fs::is_empty(out, none)) throw Error(out.string(), "is not empty", "name a new directory");
}

// All of the model, or with adapters, whose sums it holds, the modules that are trained whole.
void FillFromMaster(const fs::path& checkpoint, const Model& model, bool adapters) {
  const at::NoGradGuard no_grad;
  const StateFiles files(checkpoint);
  for (const StoredTensor& tensor : StoredTensors(model)) {
    if (adapters && !files.Has("master." + tensor.name)) continue;
    const at::Tensor part = tensor.Part(tensor.parameter);
    const std::vector<std::byte> bytes =
        files.Read("master." + tensor.name, DType::kF32, 0, part.numel(), part.numel());
    if (!CastWeights({DType::kF32, tensor.Shape(), bytes}, part)) {
      throw Error(checkpoint.string(), fmt::format("the tensor {} holds NaN or infinite values", tensor.name),
                  "the run broke down before this checkpoint; export an earlier one");
    }
  }
}

bool CopyTokenizer(const fs::path& from, const fs::path& out) {
  if (!fs::exists(from / "tokenizer.json")) return false;
  CopyTokenizerFiles(from, out);
  return true;
}

}  // namespace

fs::path CheckpointOf(const fs::path& path) {
  if (IsCheckpoint(path)) {
    if (const auto why = WhyDamaged(path)) throw Error(path.string(), *why, "export another checkpoint");
    return path;
  }
  if (!IsRun(path)) {
    throw Error(path.string(), fs::exists(path) ? "is neither a run nor a checkpoint" : "does not exist",
                "name a run's directory or one of its checkpoints (RUN/checkpoints/global_step_N)");
  }
  const auto found =
      CheckpointStore(path).FindCurrent([](const std::string& line) { Tell("augur: warning: {}\n", line); });
  if (!found) {
    const fs::path model = path / kRunModel, adapter = path / kRunAdapter;
    throw Error(path.string(), "has no checkpoint",
                fs::exists(model)     ? fmt::format("its model is {}", model.string())
                : fs::exists(adapter) ? fmt::format("its adapter is {}", adapter.string())
                                      : "let the run save one first (checkpoint.every)");
  }
  return *found;
}

Export ExportCheckpoint(const fs::path& checkpoint, const fs::path& out, std::optional<DType> dtype,
                        bool merge) {
  RequireEmpty(out);
  const fs::path path = checkpoint / kCheckpointState;
  const Json state = ParseJson(ReadFile(path), path.string());
  Export made{.checkpoint = checkpoint};
  try {
    const Json& source = state.at("model");
    made.step = state.at("step");
    made.dtype = dtype.value_or(source.at("dtype") == "fp32" ? DType::kF32 : DType::kBF16);
    if (IsAdapter(checkpoint) && !merge) {
      if (dtype)
        throw Error("--dtype", "adapters are stored as they are trained", "leave it out, or --merge them");
      CopyAdapter(checkpoint, out);
      made.adapter = true;
      made.has_tokenizer = CopyTokenizer(source.at("path").get<std::string>(), out);
      return made;
    }
    const at::ScalarType type = made.dtype == DType::kF32 ? at::kFloat : at::kBFloat16;
    if (IsAdapter(checkpoint)) {
      const Model model = LoadModel(checkpoint, type, at::Device(at::kCPU));
      FillFromMaster(checkpoint, model, /*adapters=*/true);
      SaveModel(model, out);
      made.has_tokenizer = CopyTokenizer(source.at("path").get<std::string>(), out);
      return made;
    }
    const Model model =
        AllocateModel(ParseModelConfig(source.at("config"), path.string()), type, at::Device(at::kCPU));
    FillFromMaster(checkpoint, model, /*adapters=*/false);
    SaveModel(model, out);
    const fs::path run = (fs::absolute(checkpoint) / ".." / "..").lexically_normal();
    made.has_tokenizer =
        CopyTokenizer(source.at("path").get<std::string>(), out) || CopyTokenizer(run / kRunModel, out);
  } catch (const Json::exception& fault) {
    throw Error(path.string(), fault.what(), "export a checkpoint of this version");
  }
  return made;
}

}  // namespace augur
