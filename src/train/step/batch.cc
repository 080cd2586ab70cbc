#include "train/step/batch.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "ops/typed_data.h"

namespace augur {
namespace {

int64_t CountTokens(std::span<const TrainSample> samples) {
  int64_t tokens = 0;
  for (const TrainSample& sample : samples) tokens += sample.tokens();
  return tokens;
}

// Gathers the recorded side of the samples, row by row.
struct Rows {
  std::vector<int64_t> rows, targets;
  std::vector<int32_t> ids;
  std::vector<float> logprobs, advantages, reference;

  // `begin` is the row of its first token, or where that would be if its prompt were not shared.
  void Add(const TrainSample& sample, int64_t begin) {
    const Rollout& rollout = *sample.rollout;
    const auto first = begin + static_cast<int64_t>(rollout.prompt_tokens.size()) - 1;
    const std::vector<int64_t> places = rollout.SampledPlaces();
    for (size_t t = 0; t < places.size(); ++t) {
      rows.push_back(first + places[t]);
      targets.push_back(rollout.tokens[static_cast<size_t>(places[t])]);
      const double factor = sample.importance.empty() ? 1 : sample.importance[t];
      advantages.push_back(static_cast<float>(factor * sample.advantage));
    }
    ids.insert(ids.end(), rollout.support.ids.begin(), rollout.support.ids.end());
    const std::vector<float>& from = sample.anchor.empty() ? rollout.support.logprobs : sample.anchor;
    logprobs.insert(logprobs.end(), from.begin(), from.end());
    reference.insert(reference.end(), sample.reference.begin(), sample.reference.end());
  }
};

std::vector<int32_t> TokensRead(const Rollout& rollout) {
  std::vector<int32_t> tokens = rollout.prompt_tokens;
  tokens.insert(tokens.end(), rollout.tokens.begin(), rollout.tokens.end() - 1);
  return tokens;
}

// What each sample shares with an earlier one: its prompt but for the last token, which has a row of its own
// since each response's first token is predicted there. Empty where little would be spared.
std::vector<Prefix> SharedPrompts(std::span<const TrainSample> samples) {
  constexpr int64_t kLeastSpared = 8;  // one row of as many: less is not worth attention's copies
  std::vector<Prefix> prefixes(samples.size());
  std::map<std::span<const int32_t>, size_t,
           decltype([](const auto& a, const auto& b) { return std::ranges::lexicographical_compare(a, b); })>
      first;  // sample with a prompt
  int64_t spared = 0, rows = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    const std::vector<int32_t>& prompt = samples[i].rollout->prompt_tokens;
    const auto [found, is_new] = first.emplace(prompt, i);
    if (!is_new) prefixes[i] = {found->second, static_cast<int64_t>(prompt.size()) - 1};
    spared += prefixes[i].length;
    rows += samples[i].length();
  }
  if (spared * kLeastSpared < rows) prefixes.clear();
  return prefixes;
}

// The recorded experts of all packed tokens, by layer.
Routing GatherRouting(std::span<const TrainSample> samples, std::span<const Prefix> prefixes,
                      at::Device device) {
  const RecordedRouting& first = samples.front().rollout->routing;
  if (first.width() == 0) return {};
  std::vector<uint8_t> all;
  int64_t tokens = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    const TrainSample& sample = samples[i];
    const int64_t shared = prefixes.empty() ? 0 : prefixes[i].length;
    const std::vector<uint8_t>& experts = sample.rollout->routing.experts;
    const int64_t bytes = sample.length() * first.width();
    if (static_cast<int64_t>(experts.size()) < bytes) {
      throw Error("training batch", "holds a response without its routing", "generate it anew");
    }
    all.insert(all.end(), experts.begin() + shared * first.width(), experts.begin() + bytes);
    tokens += sample.length() - shared;
  }
  const at::Tensor bytes = ToDevice(all, {tokens, first.layers, first.experts_per_token}, device);
  Routing routing;
  for (int64_t i = 0; i < first.layers; ++i) routing.push_back(bytes.select(1, i).to(at::kLong));
  return routing;
}

}  // namespace

std::vector<float> SampleWeights(Aggregation aggregation, std::span<const TrainSample> samples,
                                 int64_t horizon) {
  std::vector<int64_t> sequence;
  sequence.reserve(CountTokens(samples));
  for (size_t i = 0; i < samples.size(); ++i) {
    sequence.insert(sequence.end(), samples[i].tokens(), static_cast<int64_t>(i));
  }
  return TokenWeights(aggregation, sequence, horizon);
}

std::vector<size_t> MinibatchSizes(size_t groups, size_t most) {
  const size_t count = (groups + most - 1) / most;
  std::vector<size_t> sizes;
  for (size_t i = 0; i < count; ++i) sizes.push_back(groups / count + (i < groups % count ? 1 : 0));
  return sizes;
}

std::vector<size_t> SplitByTokens(std::span<const int64_t> lengths, int64_t micro_tokens) {
  std::vector<size_t> cuts = {0};
  int64_t tokens = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (i > cuts.back() && tokens + lengths[i] > micro_tokens) {
      cuts.push_back(i);
      tokens = 0;
    }
    tokens += lengths[i];
  }
  if (!lengths.empty()) cuts.push_back(lengths.size());
  return cuts;
}

MicroBatch MakeMicroBatch(std::span<const TrainSample> samples, std::span<const float> weights,
                          bool share_prompts, at::Device device) {
  const std::vector<Prefix> prefixes = share_prompts ? SharedPrompts(samples) : std::vector<Prefix>{};
  std::vector<std::vector<int32_t>> sequences;
  Rows gathered;
  int64_t begin = 0;
  const int64_t columns = samples.front().rollout->support.columns;
  for (size_t i = 0; i < samples.size(); ++i) {
    const TrainSample& sample = samples[i];
    if (sample.rollout->support.columns != columns) {
      throw Error("training batch", "holds responses with supports of different sizes",
                  "generate all of them with the same rollout.support");
    }
    sequences.push_back(TokensRead(*sample.rollout));
    if (!prefixes.empty()) begin -= prefixes[i].length;
    gathered.Add(sample, begin);
    begin += sample.length();
  }
  const auto count = static_cast<int64_t>(gathered.rows.size());
  MicroBatch batch;
  batch.samples = samples;
  batch.packed = PackSequences(sequences, device, prefixes);
  batch.packed.rows = ToDevice(gathered.rows, device);
  batch.targets = ToDevice(gathered.targets, device);
  batch.recorded.support_ids = ToDevice(gathered.ids, {count, columns}, device);
  batch.recorded.support_logprobs = ToDevice(gathered.logprobs, {count, columns}, device);
  batch.recorded.advantages = ToDevice(gathered.advantages, device);
  batch.recorded.weights = ToDevice(std::vector<float>(weights.begin(), weights.end()), device);
  batch.routing = GatherRouting(samples, prefixes, device);
  if (!gathered.reference.empty()) {
    batch.recorded.reference_logprobs = ToDevice(gathered.reference, device);
  }
  return batch;
}

}  // namespace augur
