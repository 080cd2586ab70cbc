#include "train/checkpoint/experience_file.h"

#include <fmt/format.h>

#include <cstring>

#include "base/error.h"
#include "formats/safetensors.h"

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

void AppendBytes(const std::vector<int32_t>& from, std::vector<int32_t>* to) {
  to->insert(to->end(), from.begin(), from.end());
}
void AppendBytes(const std::vector<uint8_t>& from, std::vector<uint8_t>* to) {
  to->insert(to->end(), from.begin(), from.end());
}
void AppendBytes(const std::vector<float>& from, std::vector<float>* to) {
  to->insert(to->end(), from.begin(), from.end());
}

// Hands out consecutive pieces of an array.
template <typename T>
class Pieces {
 public:
  Pieces(std::vector<T> values, const std::filesystem::path& path)
      : values_(std::move(values)), path_(path) {}
  std::vector<T> Next(size_t count) {
    if (count > values_.size() - at_)
      throw Error(path_.string(), "arrays do not fit together", "use another checkpoint");
    const auto begin = values_.begin() + static_cast<std::ptrdiff_t>(at_);
    at_ += count;
    return {begin, begin + static_cast<std::ptrdiff_t>(count)};
  }

 private:
  std::vector<T> values_;
  const std::filesystem::path& path_;
  size_t at_ = 0;
};

Json SaveOne(const Experience& e, const std::string& prefix, ArrayWriter* arrays) {
  std::vector<int64_t> heads, prompts(e.prompts.begin(), e.prompts.end());
  std::vector<int32_t> tokens, support_ids;
  std::vector<float> logprobs, support_logprobs;
  std::vector<uint8_t> routing;
  std::vector<double> rewards = e.rewards, scores;
  Json figures = Json::array();  // by response; empty where no function returns any
  for (size_t i = 0; i < e.rollouts.size(); ++i) {
    const Rollout& r = e.rollouts[i];
    for (const int64_t value :
         {static_cast<int64_t>(r.prompt), r.sample, static_cast<int64_t>(r.tokens.size()), r.support.columns,
          r.weight_version, static_cast<int64_t>(r.finish), int64_t{e.scores[i].right},
          int64_t{e.scores[i].answered}, int64_t{e.scores[i].failed}, r.routing.layers,
          r.routing.experts_per_token, static_cast<int64_t>(r.routing.experts.size())}) {
      heads.push_back(value);
    }
    scores.push_back(e.scores[i].value);
    if (!e.scores[i].figures.empty()) figures.push_back({i, e.scores[i].figures});
    AppendBytes(r.tokens, &tokens);
    AppendBytes(r.logprobs, &logprobs);
    AppendBytes(r.support.ids, &support_ids);
    AppendBytes(r.support.logprobs, &support_logprobs);
    AppendBytes(r.routing.experts, &routing);
  }
  arrays->Add(prefix + "heads", DType::kI64, heads);
  arrays->Add(prefix + "prompts", DType::kI64, prompts);
  arrays->Add(prefix + "tokens", DType::kI32, tokens);
  arrays->Add(prefix + "logprobs", DType::kF32, logprobs);
  arrays->Add(prefix + "support_ids", DType::kI32, support_ids);
  arrays->Add(prefix + "support_logprobs", DType::kF32, support_logprobs);
  arrays->Add(prefix + "routing", DType::kU8, routing);
  arrays->Add(prefix + "rewards", DType::kF64, rewards);
  arrays->Add(prefix + "scores", DType::kF64, scores);
  return {{"weight_version", e.weight_version},
          {"temperature", e.rollouts.empty() ? 1.0 : e.rollouts.front().temperature},
          {"groups", e.groups},
          {"equal_groups", e.equal_groups},
          {"refills", e.refills},
          {"reward_errors", e.reward_errors},
          {"reward_restarts", e.reward_restarts},
          {"figures", figures},
          {"failed", e.failed},
          {"position", e.position},
          {"decode_batch", e.decode_batch}};
}

constexpr size_t kHeadWidth = 12;

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
  Pieces<int64_t> heads(ReadArray<int64_t>(file, prefix + "heads", path), path);
  Pieces<double> scores(ReadArray<double>(file, prefix + "scores", path), path);
  Pieces<int32_t> tokens(ReadArray<int32_t>(file, prefix + "tokens", path), path);
  Pieces<int32_t> ids(ReadArray<int32_t>(file, prefix + "support_ids", path), path);
  Pieces<float> logprobs(ReadArray<float>(file, prefix + "logprobs", path), path);
  Pieces<uint8_t> routing(ReadArray<uint8_t>(file, prefix + "routing", path), path);
  Pieces<float> support(ReadArray<float>(file, prefix + "support_logprobs", path), path);
  for (size_t i = 0; i < e.rewards.size(); ++i) {
    const std::vector<int64_t> head = heads.Next(kHeadWidth);
    const size_t group = e.prompts.empty() ? 0 : i / (e.rewards.size() / e.prompts.size());
    if (group >= e.prompts.size() || e.prompts[group] >= prompt_tokens.size() || head[2] < 0 || head[3] < 0 ||
        head[11] < 0) {
      throw Error(path.string(), "names prompts that the data does not have",
                  "resume with the data the run began with");
    }
    const auto count = static_cast<size_t>(head[2]), cells = count * static_cast<size_t>(head[3]);
    Rollout r;
    r.prompt = static_cast<uint64_t>(head[0]);
    r.sample = head[1];
    r.prompt_tokens = prompt_tokens[e.prompts[group]];
    r.tokens = tokens.Next(count);
    r.logprobs = logprobs.Next(count);
    r.support = {head[3], ids.Next(cells), support.Next(cells)};
    r.routing = {head[9], head[10], routing.Next(static_cast<size_t>(head[11]))};
    r.temperature = counters.at("temperature");
    r.weight_version = head[4];
    r.finish = static_cast<FinishReason>(head[5]);
    e.rollouts.push_back(std::move(r));
    e.scores.push_back({.value = scores.Next(1)[0],
                        .right = head[6] != 0,
                        .answered = head[7] != 0,
                        .failed = head[8] != 0});
  }
  for (const Json& entry : counters.value("figures", Json::array())) {
    e.scores.at(entry.at(0).get<size_t>()).figures = entry.at(1).get<std::map<std::string, double>>();
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
