#include "mask/response_rules.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "mask/arithmetic.h"

namespace augur {
namespace {

// A token with a recorded support.
struct Sampled {
  double log_ratio = 0;  // clamped
  double ratio = 1;
  double moved = 0;  // |pi - mu|
  double advantage = 0;
  TokenDecision* decision = nullptr;
};
using Response = std::span<const Sampled>;

template <typename F>
double Sum(Response response, F f) {
  return std::accumulate(response.begin(), response.end(), 0.0,
                         [&](double sum, const Sampled& token) { return sum + f(token); });
}

template <typename F>
double Mean(Response response, F f) {
  return Sum(response, f) / static_cast<double>(response.size());
}

double LogRatio(const Sampled& token) { return token.log_ratio; }
double AbsoluteAway(const Sampled& token) { return std::abs(token.ratio - 1); }
// Schulman's estimates of a divergence of pi from mu.
double K2(const Sampled& token) { return token.log_ratio * token.log_ratio / 2; }
double K3(const Sampled& token) { return std::expm1(token.log_ratio) - token.log_ratio; }

// Fills a decision; `weight` is the coefficient of a token that is kept.
void Settle(const Sampled& token, double divergence, double direction, bool outside, double weight) {
  TokenDecision& out = *token.decision;
  out.divergence = divergence;
  out.direction = direction;
  out.outside = outside;
  out.outward = token.advantage * direction > 0;
  out.keep = !(outside && out.outward);
  out.coefficient = out.keep ? weight : 0;
}

bool Outside(const MaskRule& rule, double ratio) {
  return ratio - 1 > rule.clip_high || ratio - 1 < -rule.clip_low;
}

void DecideGspo(const MaskRule& rule, Response response) {
  const double ratio = std::exp(Mean(response, LogRatio));
  for (const Sampled& token : response) {
    Settle(token, std::abs(ratio - 1), ratio - 1, Outside(rule, ratio), ratio);
  }
}

// The ratio of a response is the geometric mean of those of its tokens, each held where it points outward.
void DecideGmpo(const MaskRule& rule, Response response) {
  const double mean = Mean(response, [&](const Sampled& token) {
    if (token.advantage > 0) return std::min(token.log_ratio, rule.clip_high);
    return token.advantage < 0 ? std::max(token.log_ratio, -rule.clip_low) : token.log_ratio;
  });
  for (const Sampled& token : response) {
    const bool outside = token.log_ratio > rule.clip_high || token.log_ratio < -rule.clip_low;
    Settle(token, std::abs(token.log_ratio), token.log_ratio, outside, std::exp(mean));
  }
}

// A response is dropped whole, whichever way its tokens go.
void DropResponse(Response response, double divergence, bool outside) {
  for (const Sampled& token : response) {
    Settle(token, divergence, SignOf(token.advantage), outside, token.ratio);
  }
}

void DecideTrm(const MaskRule& rule, Response response) {
  double largest = 0;
  for (const Sampled& token : response) largest = std::max(largest, K2(token));
  DropResponse(response, largest, largest > rule.delta || Mean(response, K3) > rule.delta_mean);
}

void DecideMis(const MaskRule& rule, Response response, double log_ratio) {
  const double ratio = std::exp(std::clamp(log_ratio, -kLogRatioLimit, kLogRatioLimit));
  DropResponse(response, std::abs(ratio - 1), Outside(rule, ratio));
}

void DecideOpsm(const MaskRule& rule, Response response) {
  const double kl = -Mean(response, LogRatio);
  for (const Sampled& token : response) Settle(token, kl, -1, kl > rule.delta, token.ratio);
}

void DecideVaco(const MaskRule& rule, Response response) {
  const double away = Mean(response, AbsoluteAway);
  for (const Sampled& token : response) {
    Settle(token, away, token.ratio - 1, away > rule.delta, token.ratio);
  }
}

// phi(W) = e^lambda W^k e^(-lambda W) of the response's whole ratio W, 1 at W = 1.
void DecideVespo(const MaskRule& rule, Response response) {
  constexpr double kPowerPositive = 2, kPowerNegative = 3, kSmallestRatio = 1e-8;
  const double log_ratio = std::clamp(Sum(response, LogRatio), std::log(kSmallestRatio), kLogRatioLimit);
  const double ratio = std::exp(log_ratio);
  for (const Sampled& token : response) {
    const bool negative = token.advantage < 0;
    const double lambda = negative ? rule.tau_negative : rule.tau_positive;
    const double power = negative ? kPowerNegative : kPowerPositive;
    const double weight = std::exp(lambda + power * log_ratio - lambda * ratio);
    Settle(token, std::abs(ratio - 1), SignOf(token.advantage), false, weight);
  }
}

// By linear interpolation between the two nearest.
double Quantile(std::vector<double> values, double share) {
  std::ranges::sort(values);
  const double place = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (place - static_cast<double>(below)) * (values[above] - values[below]);
}

void DecideCppo(const MaskRule& rule, Response response) {
  constexpr double kShare = 0.9;
  std::vector<double> moved;
  for (const Sampled& token : response) moved.push_back(token.moved);
  const double budget =
      std::clamp(Quantile(std::move(moved), kShare), rule.prefix_budget, 2 * rule.prefix_budget);
  const double last = std::max<double>(static_cast<double>(response.size()) - 1, 1);
  double weights = 0, spent = 0;  // of the tokens before
  for (size_t i = 0; i < response.size(); ++i) {
    const Sampled& token = response[i];
    const double weight = 1 - (1 - rule.position_floor) * static_cast<double>(i) / last;
    const double weighted = weight * token.moved;
    const double threshold = std::min(rule.delta, rule.delta + budget * weights - spent);
    Settle(token, weighted, token.ratio - 1, weighted > threshold, token.ratio);
    weights += weight;
    spent += weighted;
  }
}

// Masks the outward tokens with the largest (log r)^2 until the mean over what is left is below delta. One
// token is left in any case.
void DecideM2po(const MaskRule& rule, Response batch) {
  const auto direction_of = [&](const Sampled& token) {
    return rule.direction == Direction::kAny ? SignOf(token.advantage) : token.log_ratio;
  };
  std::vector<const Sampled*> outward;
  double sum = 0;
  for (const Sampled& token : batch) {
    Settle(token, 2 * K2(token), direction_of(token), false, token.ratio);
    if (token.decision->outward) outward.push_back(&token);
    sum += 2 * K2(token);
  }
  std::ranges::stable_sort(outward, std::greater(), [](const Sampled* token) { return K2(*token); });
  size_t left = batch.size();
  for (const Sampled* token : outward) {
    if (left == 1 || sum < rule.delta * static_cast<double>(left)) break;
    Settle(*token, 2 * K2(*token), direction_of(*token), true, token->ratio);
    sum -= 2 * K2(*token);
    --left;
  }
}

void DecideResponse(const MaskRule& rule, Response response) {
  switch (rule.scope) {
    case Scope::kToken:
    case Scope::kM2po:
      return;
    case Scope::kGspo:
      return DecideGspo(rule, response);
    case Scope::kGmpo:
      return DecideGmpo(rule, response);
    case Scope::kTrm:
      return DecideTrm(rule, response);
    case Scope::kOpsm:
      return DecideOpsm(rule, response);
    case Scope::kMisSequence:
      return DecideMis(rule, response, Sum(response, LogRatio));
    case Scope::kMisGeometric:
      return DecideMis(rule, response, Mean(response, LogRatio));
    case Scope::kVaco:
      return DecideVaco(rule, response);
    case Scope::kVespo:
      return DecideVespo(rule, response);
    case Scope::kCppo:
      return DecideCppo(rule, response);
  }
}

}  // namespace

bool NeedsLengths(const MaskRule& rule) { return rule.scope != Scope::kToken && rule.scope != Scope::kM2po; }

std::vector<TokenDecision> DecideResponses(const MaskRule& rule, const SampledTokens& tokens) {
  std::vector<TokenDecision> decisions(tokens.advantage.size());
  std::vector<Sampled> present;
  std::vector<size_t> ends;  // of the responses in `present`
  size_t t = 0;
  for (const int64_t length : tokens.lengths) {
    for (const size_t end = t + static_cast<size_t>(length); t < end; ++t) {
      TokenDecision& decision = decisions[t];
      const double log_mu = tokens.behaviour[t], log_pi = tokens.policy[t];
      decision.missing = log_mu == -std::numeric_limits<double>::infinity();
      decision.keep = !decision.missing;
      if (decision.missing) continue;
      const double log_ratio = std::clamp(log_pi - log_mu, -kLogRatioLimit, kLogRatioLimit);
      decision.ratio = std::exp(log_ratio);
      present.push_back({log_ratio, decision.ratio, std::abs(std::exp(log_pi) - std::exp(log_mu)),
                         tokens.advantage[t], &decision});
    }
    ends.push_back(present.size());
  }
  const Response all(present);
  if (rule.scope == Scope::kM2po) {
    if (!all.empty()) DecideM2po(rule, all);
    return decisions;
  }
  size_t begin = 0;
  for (const size_t end : ends) {
    if (end > begin) DecideResponse(rule, all.subspan(begin, end - begin));
    begin = end;
  }
  return decisions;
}

}  // namespace augur
