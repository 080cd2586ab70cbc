// Random tokens for the mask tests: two softmax distributions over a whole vocabulary and the support of the
// first.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "mask/reference.h"

namespace augur {

inline std::vector<double> LogSoftmax(const std::vector<double>& logits) {
  const double top = *std::ranges::max_element(logits);
  double sum = 0;
  for (const double z : logits) sum += std::exp(z - top);
  std::vector<double> out(logits.size());
  std::ranges::transform(logits, out.begin(), [&](double z) { return z - top - std::log(sum); });
  return out;
}

// A token over its whole vocabulary; View() gathers what the mask is given.
struct FullToken {
  std::vector<double> behaviour_logits, policy_logits;
  std::vector<int> support;  // support[0] is the sampled token
  double advantage = 1;

  std::vector<double> behaviour, policy;  // over the support, filled by Gather()
  double tail_square = 0, tail_cube = 0;

  void Gather() {
    const auto log_mu = LogSoftmax(behaviour_logits), log_pi = LogSoftmax(policy_logits);
    behaviour.clear();
    policy.clear();
    for (const int id : support) {
      behaviour.push_back(log_mu[id]);
      policy.push_back(log_pi[id]);
    }
    tail_square = tail_cube = 0;
    for (size_t i = 0; i < log_pi.size(); ++i) {
      if (std::ranges::find(support, static_cast<int>(i)) != support.end()) continue;
      tail_square += std::exp(2 * log_pi[i]);
      tail_cube += std::exp(3 * log_pi[i]);
    }
  }

  TokenView View() const {
    const auto vocab = static_cast<int64_t>(policy_logits.size());
    return {behaviour, policy, advantage, vocab, tail_square, {}, tail_cube};
  }
};

// `peak` sharpens both distributions; `drift` is how far the policy has moved from the behaviour.
inline FullToken RandomToken(std::mt19937_64& random, int vocab, int k, double peak, double drift) {
  std::normal_distribution<double> normal;
  FullToken token;
  for (int i = 0; i < vocab; ++i) {
    token.behaviour_logits.push_back(peak * normal(random));
    token.policy_logits.push_back(token.behaviour_logits.back() + drift * normal(random));
  }
  std::vector<int> order(vocab);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, std::greater(), [&](int i) { return token.behaviour_logits[i]; });
  order.resize(std::min(k, vocab));
  // Half of the sampled tokens come from the top K, half from anywhere.
  const int sampled = random() % 2 ? order[random() % order.size()] : static_cast<int>(random() % vocab);
  std::erase(order, sampled);
  token.support = {sampled};
  token.support.insert(token.support.end(), order.begin(), order.end());
  const double advantages[] = {1, -1, 0.37, -2.5, 0};
  token.advantage = advantages[random() % 5];
  token.Gather();
  return token;
}

}  // namespace augur
