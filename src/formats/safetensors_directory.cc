#include <fmt/format.h>

#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/utf8.h"
#include "formats/safetensors.h"

namespace augur {
namespace {

namespace fs = std::filesystem;

Error NoWeights(const fs::path& directory) {
  std::string_view remedy = "name a directory that holds them";
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".gguf"))
      remedy = "there is a GGUF file: 'augur convert' turns it into such a directory";
    if (name.starts_with("pytorch_model") && name.ends_with(".bin")) {
      remedy =
          "there are pickled weights, which Augur does not open: save them again with "
          "safe_serialization=True";
    }
  }
  return Error(directory.string(), "neither model.safetensors nor model.safetensors.index.json", remedy);
}

// Tensor name -> shard, as the index says.
std::map<std::string, std::string> ReadWeightMap(const fs::path& index) {
  const std::string text = ReadFile(index);
  RefuseLfsPointer(text, index);
  const Json object = ParseJsonUniqueKeys(text, index.string());
  const Json& weight_map = RequireKey(object, "weight_map", index.string());
  if (!weight_map.is_object() || weight_map.empty()) {
    throw Error(index.string(), "\"weight_map\" names no tensors", "fetch the index again");
  }
  std::map<std::string, std::string> shards;
  for (const auto& [name, shard] : weight_map.items()) {
    // A shard stands next to its index: a path would let a downloaded file name any file of the machine.
    if (!shard.is_string() || shard.get<std::string>().empty() ||
        fs::path(shard.get<std::string>()).filename() != shard.get<std::string>()) {
      throw Error(
          index.string(),
          fmt::format("tensor {} is in {}, which is not a file name", Quoted(name), Printable(shard.dump())),
          "fetch the index again");
    }
    shards[name] = shard.get<std::string>();
  }
  return shards;
}

}  // namespace

SafetensorsDirectory::SafetensorsDirectory(const fs::path& directory) {
  if (!fs::is_directory(directory)) {
    throw Error(directory.string(), fs::exists(directory) ? "is not a directory" : "no such directory",
                "name the directory that holds config.json and the weights");
  }
  const fs::path single = directory / "model.safetensors";
  const fs::path index = directory / "model.safetensors.index.json";
  if (fs::exists(single)) {
    tensors_ = files_.emplace_back(single).tensors();
  } else if (fs::exists(index)) {
    ReadShards(directory, index);
  } else {
    throw NoWeights(directory);
  }
}

void SafetensorsDirectory::ReadShards(const fs::path& directory, const fs::path& index) {
  const auto weight_map = ReadWeightMap(index);
  std::set<std::string> shards;
  for (const auto& [name, shard] : weight_map) shards.insert(shard);
  for (const std::string& shard : shards) {
    if (!fs::exists(directory / shard)) {
      throw Error((directory / shard).string(), "this shard is named by the index but missing",
                  "fetch the remaining files of the model");
    }
    for (const auto& [name, tensor] : files_.emplace_back(directory / shard).tensors()) {
      const auto listed = weight_map.find(name);
      if (listed == weight_map.end()) {
        throw Error(index.string(), fmt::format("tensor {} of {} is not listed", Quoted(name), shard),
                    "index and shards are of different models; fetch both again");
      }
      if (listed->second != shard) {
        throw Error(index.string(),
                    fmt::format("tensor {} is in {} but listed in {}", Quoted(name), shard, listed->second),
                    "index and shards are of different models; fetch both again");
      }
      tensors_.emplace(name, tensor);
    }
  }
  for (const auto& [name, shard] : weight_map) {
    if (tensors_.contains(name)) continue;
    throw Error(index.string(), fmt::format("tensor {} is listed in {} but not there", Quoted(name), shard),
                "index and shards are of different models; fetch both again");
  }
}

}  // namespace augur
