#include "train/run/lora.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/hub.h"
#include "base/run_directory.h"
#include "model/adapter.h"
#include "model/adapter_files.h"
#include "model/save.h"
#include "ops/parallel/ranks.h"

namespace augur {

bool UsesLora(const LoraSection& lora) { return lora.rank > 0 || !lora.adapter.empty(); }

std::vector<std::string> FrozenModels(const ModelSection& model, const LoraSection& lora,
                                      bool with_reference) {
  std::vector<std::string> frozen;
  if (UsesLora(lora) || (with_reference && model.reference.empty())) frozen.push_back(model.path);
  if (!lora.adapter.empty()) frozen.push_back(lora.adapter);
  if (with_reference && !model.reference.empty()) frozen.push_back(model.reference);
  return frozen;
}

void TakeAdapterDirectory(ModelSection* model, LoraSection* lora) {
  const std::string directory = ModelDirectory(model->path);
  if (!IsAdapter(directory)) return;
  if (!lora->adapter.empty()) {
    throw Error("lora.adapter", "is set, and model.path is an adapter too", "name the base as model.path");
  }
  lora->adapter = model->path;
  model->path = PinModel(BaseModel(directory));
}

namespace {

void MakeAdapters(const LoraSection& lora, uint64_t seed, Model* model) {
  if (!lora.adapter.empty()) {
    ReadAdapter(ModelDirectory(lora.adapter), model);
    if (lora.rank > 0 && lora.rank != model->lora->rank) {
      throw Error("lora.rank",
                  fmt::format("is {}, that of {} {}", lora.rank, lora.adapter, model->lora->rank),
                  "leave it out: the adapter's own is taken");
    }
    return;
  }
  if (lora.rank == 0) return;
  const LoraOptions options{lora.rank, lora.alpha, lora.targets, lora.modules_to_save};
  AddAdapters(options, seed, "lora.targets", model);
}

}  // namespace

void StartLora(const LoraSection& lora, Precision precision, uint64_t seed, Model* model) {
  MakeAdapters(lora, seed, model);
  if (model->lora && precision == Precision::kFp8) RoundBaseToFp8(model);
}

void SaveResult(const Model& model, const std::filesystem::path& base, const std::filesystem::path& run,
                LayerStore* store) {
  const std::filesystem::path out = run / (model.lora ? kRunAdapter : kRunModel);
  if (store != nullptr) SaveModel(model, out, kShardBytes, store);
  Ranks::World().OnFirst([&] {
    if (model.lora) {
      SaveAdapter(model, base, out);
    } else if (store == nullptr) {
      SaveModel(model, out);
    }
    CopyTokenizerFiles(base, out);
  });
}

std::string DescribeResult(const std::filesystem::path& run) {
  const bool adapter = std::filesystem::exists(run / kRunAdapter);
  return adapter ? fmt::format("adapter: {}", (run / kRunAdapter).string())
                 : fmt::format("model:  {}", (run / kRunModel).string());
}

}  // namespace augur
