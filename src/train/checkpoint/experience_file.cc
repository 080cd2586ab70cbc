#include "train/checkpoint/experience_file.h"

#include <fmt/format.h>

#include <cstring>

#include "base/bytes.h"
#include "base/error.h"
#include "formats/safetensors.h"
#include "reward/score_bytes.h"
#include "trajectory/trajectory_bytes.h"

namespace augur {
namespace {

// Arrays of numbers under names, to a file and back.
class ArrayWriter {
 public:
  template <typename T>
  void Add(const std::string& name, DType dtype, const std::vector<T>& values) {
    const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
    kept_.emplace_back(bytes, bytes + values.size() * sizeof(T));
    names_.push_back({name, dtype, static_cast<int64_t>(values.size())});
  }
  void Write(const std::filesystem::path& path) const {
    std::vector<TensorSource> sources;
    for (size_t i = 0; i < names_.size(); ++i) {
      sources.push_back(SourceOf(names_[i].name, names_[i].dtype, {names_[i].count}, kept_[i]));
    }
    WriteSafetensors(path, std::move(sources), {});
  }

 private:
  struct Entry {
    std::string name;
    DType dtype;
    int64_t count;
  };
  std::vector<std::vector<std::byte>> kept_;
  std::vector<Entry> names_;
};

template <typename T>
std::vector<T> ReadArray(const SafetensorsFile& file, const std::string& name,
                         const std::filesystem::path& path) {
  const auto found = file.tensors().find(name);
  if (found == file.tensors().end()) {
    throw Error(path.string(), fmt::format("the array {} is missing", name), "use another checkpoint");
  }
  std::vector<T> values(found->second.bytes.size() / sizeof(T));
  std::memcpy(values.data(), found->second.bytes.data(), values.size() * sizeof(T));
  return values;
}

Json SaveOne(const Experience& e, const std::string& prefix, ArrayWriter* arrays) {
  ByteWriter responses;
  for (size_t i = 0; i < e.rollouts.size(); ++i) {
    PutTrajectory(e.rollouts[i], &responses);
    PutScore(e.scores[i], &responses);
  }
  const std::vector<uint8_t> bytes(responses.bytes().begin(), responses.bytes().end());
  const std::vector<int64_t> prompts(e.prompts.begin(), e.prompts.end());
  arrays->Add(prefix + "responses", DType::kU8, bytes);
  arrays->Add(prefix + "prompts", DType::kI64, prompts);
  arrays->Add(prefix + "rewards", DType::kF64, e.rewards);
  return {{"weight_version", e.weight_version},
          {"groups", e.groups},
          {"equal_groups", e.equal_groups},
          {"refills", e.refills},
          {"reward_errors", e.reward_errors},
          {"reward_restarts", e.reward_restarts},
          {"failed", e.failed},
          {"position", e.position},
          {"decode_batch", e.decode_batch}};
}

// As many as the experience has rewards.
void ReadResponses(const std::vector<uint8_t>& bytes, Experience* e) {
  ByteReader in({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  for (size_t i = 0; i < e->rewards.size(); ++i) {
    e->rollouts.push_back(GetTrajectory(&in));
    e->scores.push_back(GetScore(&in));
  }
  if (!in.done()) throw Error("responses", "are more than their rewards", "");
}

Experience LoadOne(const Json& counters, const SafetensorsFile& file, const std::string& prefix,
                   const std::filesystem::path& path,
                   const std::vector<std::vector<int32_t>>& prompt_tokens) {
  Experience e;
  e.weight_version = counters.at("weight_version");
  e.groups = counters.at("groups");
  e.equal_groups = counters.at("equal_groups");
  e.refills = counters.at("refills");
  e.reward_errors = counters.at("reward_errors");
  e.reward_restarts = counters.value("reward_restarts", int64_t{0});
  e.failed = counters.at("failed");
  e.position = counters.value("position", uint64_t{0});
  e.decode_batch = counters.value("decode_batch", int64_t{0});
  e.rewards = ReadArray<double>(file, prefix + "rewards", path);
  for (const int64_t place : ReadArray<int64_t>(file, prefix + "prompts", path)) {
    e.prompts.push_back(static_cast<size_t>(place));
  }
  const std::vector<uint8_t> responses = ReadArray<uint8_t>(file, prefix + "responses", path);
  try {
    ReadResponses(responses, &e);
  } catch (const Error&) {
    throw Error(path.string(), "holds responses that do not fit together", "use another checkpoint");
  }
  for (size_t i = 0; i < e.rollouts.size(); ++i) {
    const size_t group = e.prompts.empty() ? 0 : i * e.prompts.size() / e.rollouts.size();
    if (group >= e.prompts.size() || e.prompts[group] >= prompt_tokens.size()) {
      throw Error(path.string(), "names prompts that the data does not have",
                  "resume with the data the run began with");
    }
    e.rollouts[i].prompt_tokens = prompt_tokens[e.prompts[group]];
  }
  return e;
}

}  // namespace

Json SaveExperiences(std::span<const Experience* const> experiences, const std::filesystem::path& path) {
  ArrayWriter arrays;
  Json counters = Json::array();
  for (size_t i = 0; i < experiences.size(); ++i) {
    counters.push_back(SaveOne(*experiences[i], fmt::format("{}.", i), &arrays));
  }
  arrays.Write(path);
  return counters;
}

std::vector<Experience> LoadExperiences(const Json& counters, const std::filesystem::path& path,
                                        const std::vector<std::vector<int32_t>>& tokens) {
  const SafetensorsFile file(path);
  std::vector<Experience> experiences;
  for (size_t i = 0; i < counters.size(); ++i) {
    experiences.push_back(LoadOne(counters[i], file, fmt::format("{}.", i), path, tokens));
  }
  return experiences;
}

}  // namespace augur
