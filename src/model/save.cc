#include "model/save.h"

#include <map>
#include <memory>
#include <set>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "base/hub.h"
#include "formats/safetensors.h"
#include "model/weight_cast.h"
#include "ops/parallel/ranks.h"

namespace augur {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

int64_t Bytes(const StoredTensor& tensor) {
  int64_t count = static_cast<int64_t>(DTypeSize(StoredType(tensor.parameter)));
  for (const int64_t extent : tensor.Shape()) count *= extent;
  return count;
}

TensorSource MakeSource(const StoredTensor& tensor) {
  auto write = [tensor](const ByteSink& sink) {
    const at::Tensor host = tensor.Part(tensor.parameter.detach()).contiguous().cpu();
    sink({static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()});
  };
  return {tensor.name, StoredType(tensor.parameter), tensor.Shape(), write};
}

// Tensors in order, a new shard before the one that would pass the limit.
std::vector<std::vector<StoredTensor>> SplitIntoShards(const std::vector<StoredTensor>& tensors,
                                                       int64_t limit) {
  std::vector<std::vector<StoredTensor>> shards(1);
  int64_t size = 0;
  for (const StoredTensor& tensor : tensors) {
    if (size + Bytes(tensor) > limit && !shards.back().empty()) {
      shards.emplace_back();
      size = 0;
    }
    size += Bytes(tensor);
    shards.back().push_back(tensor);
  }
  return shards;
}

// The part of the store that each parameter is in; the final norm is in none.
std::map<const c10::TensorImpl*, size_t> PartsOf(const Model& model) {
  std::map<const c10::TensorImpl*, size_t> parts;
  for (size_t i = 0; i < model.layers.size(); ++i) {
    for (const at::Tensor& parameter : LayerParameters(model.layers[i])) {
      parts[parameter.unsafeGetTensorImpl()] = i;
    }
  }
  parts[model.embedding.unsafeGetTensorImpl()] = EmbeddingPart(model);
  if (!model.config.tied_head) parts[model.head.unsafeGetTensorImpl()] = HeadPart(model);
  return parts;
}

class ModelWriter {
 public:
  ModelWriter(const Model& model, LayerStore* store) : store_(store) {
    if (store_ != nullptr) parts_ = PartsOf(model);
  }

  // On the first rank of those that share the store.
  void OnFirst(const std::function<void()>& work) const {
    return store_ == nullptr ? work() : Ranks::World().OnFirst(work);
  }

  void WriteShard(const fs::path& path, const std::vector<StoredTensor>& shard) const {
    std::set<size_t> needed;
    for (const StoredTensor& tensor : shard) {
      const auto part = parts_.find(tensor.parameter.unsafeGetTensorImpl());
      if (part != parts_.end()) needed.insert(part->second);
    }
    std::vector<std::unique_ptr<PartUse>> there;
    for (auto part = needed.begin(); part != needed.end();) {
      const size_t now = *part++;
      const int64_t next = part == needed.end() ? -1 : static_cast<int64_t>(*part);
      there.push_back(std::make_unique<PartUse>(store_, now, next));
    }
    OnFirst([&] {
      std::vector<TensorSource> sources;
      for (const StoredTensor& tensor : shard) sources.push_back(MakeSource(tensor));
      WriteSafetensors(path, std::move(sources), {{"format", "pt"}});
    });
  }

 private:
  LayerStore* const store_;
  std::map<const c10::TensorImpl*, size_t> parts_;
};

// Writes the weights and returns the names of the files.
std::set<std::string> WriteWeights(const ModelWriter& writer, const std::vector<StoredTensor>& tensors,
                                   const fs::path& directory, int64_t shard_bytes) {
  const auto shards = SplitIntoShards(tensors, shard_bytes);
  if (shards.size() == 1) {
    writer.WriteShard(directory / kSingleFile, shards.front());
    return {kSingleFile};
  }
  std::set<std::string> files = {kIndexFile};
  Json map = Json::object();
  int64_t total = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    writer.WriteShard(directory / name, shards[i]);
    files.insert(name);
    for (const StoredTensor& tensor : shards[i]) {
      map[tensor.name] = name;
      total += Bytes(tensor);
    }
  }
  const Json index = {{"metadata", {{"total_size", total}}}, {"weight_map", map}};
  writer.OnFirst([&] { WriteFileAtomically(directory / kIndexFile, index.dump(2) + "\n"); });
  return files;
}

void RemoveOtherWeights(const fs::path& directory, const std::set<std::string>& keep) {
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    const bool weights = name == kSingleFile || name == kIndexFile ||
                         (name.starts_with("model-") && name.ends_with(".safetensors"));
    if (weights && !keep.contains(name)) fs::remove(entry.path());
  }
}

Json SavedConfig(const Model& model) {
  Json config = model.config.source;
  const std::string dtype = StoredType(model.embedding) == DType::kBF16 ? "bfloat16" : "float32";
  config.erase("torch_dtype");  // the older name of the same key
  config["dtype"] = dtype;
  return config;
}

}  // namespace

void SaveModel(const Model& model, const fs::path& directory, int64_t shard_bytes, LayerStore* store) {
  const ModelWriter writer(model, store);
  writer.OnFirst([&] {
    std::error_code fault;
    fs::create_directories(directory, fault);
    if (fault) throw Error(directory.string(), "cannot make the directory: " + fault.message(), "");
  });
  const std::set<std::string> files = WriteWeights(writer, StoredTensors(model), directory, shard_bytes);
  writer.OnFirst([&] {
    RemoveOtherWeights(directory, files);
    WriteFileAtomically(directory / "config.json", SavedConfig(model).dump(2) + "\n");
  });
}

void CopyTokenizerFiles(const fs::path& model, const fs::path& to) {
  const fs::path from = ModelDirectory(model.string());
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                           "added_tokens.json", "vocab.json", "merges.txt", "tokenizer.model",
                           "chat_template.jinja", "chat_template.json", "generation_config.json"}) {
    const fs::path file = from / name;
    if (fs::is_regular_file(file) && !fs::equivalent(from, to))
      WriteFileAtomically(to / name, ReadFile(file));
  }
}

}  // namespace augur
