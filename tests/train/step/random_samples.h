// Responses nobody drew: random tokens, with supports from a distribution that is not the model's.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "rollout/rollout.h"

namespace augur {

inline Rollout RandomRollout(int64_t vocab, int prompt, int response, uint64_t seed, int columns = 6) {
  std::mt19937_64 random(seed);
  Rollout rollout;
  for (int i = 0; i < prompt; ++i) rollout.prompt_tokens.push_back(static_cast<int32_t>(random() % vocab));
  rollout.support.columns = columns;
  std::vector<int32_t> ids(vocab);
  std::iota(ids.begin(), ids.end(), 0);
  for (int t = 0; t < response; ++t) {
    std::shuffle(ids.begin(), ids.end(), random);
    rollout.tokens.push_back(ids[0]);
    std::vector<float> mu;
    for (int c = 0; c < columns; ++c) mu.push_back(0.05f + static_cast<float>(random() % 1000) / 1000);
    std::sort(mu.begin() + 1, mu.end(), std::greater<>());
    const float sum = std::accumulate(mu.begin(), mu.end(), 0.1f);
    for (int c = 0; c < columns; ++c) {
      rollout.support.ids.push_back(ids[c]);
      rollout.support.logprobs.push_back(std::log(mu[c] / sum));
    }
    rollout.logprobs.push_back(rollout.support.logprobs[rollout.support.logprobs.size() - columns]);
  }
  return rollout;
}

}  // namespace augur
