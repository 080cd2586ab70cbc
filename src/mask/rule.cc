#include "mask/rule.h"

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/error.h"

namespace augur {
namespace {

template <typename E, size_t N>
using Names = std::array<std::pair<std::string_view, E>, N>;

constexpr Names<Proximity, 4> kProximities{{{"none", Proximity::kNone},
                                            {"ratio", Proximity::kRatio},
                                            {"kl", Proximity::kKl},
                                            {"tv", Proximity::kTv}}};
constexpr Names<Direction, 2> kDirections{
    {{"ratio", Direction::kRatio}, {"predicted", Direction::kPredicted}}};
constexpr Names<Support, 2> kSupports{{{"topk", Support::kTopK}, {"binary", Support::kBinary}}};
constexpr Names<TailModel, 3> kTails{
    {{"aggregated", TailModel::kAggregated}, {"uniform", TailModel::kUniform}, {"exact", TailModel::kExact}}};
constexpr Names<Action, 2> kActions{{{"drop", Action::kDrop}, {"restore", Action::kRestore}}};

constexpr std::string_view kFields[] = {"proximity", "direction", "support",         "tail",
                                        "action",    "delta",     "delta_negative",  "clip_low",
                                        "clip_high", "ratio_cap", "restore_strength"};

constexpr std::string_view kPresets[] = {"none",
                                         "clip",
                                         "dppo-binary-kl",
                                         "dppo-binary-tv",
                                         "dppo-topk-kl",
                                         "dppo-topk-tv",
                                         "predictive-kl-aggregated",
                                         "predictive-kl-uniform",
                                         "predictive-kl-exact",
                                         "predictive-tv-aggregated",
                                         "predictive-tv-uniform",
                                         "predictive-tv-exact",
                                         "predictive-kl-tight"};

template <typename E, size_t N>
E ParseName(std::string_view field, std::string_view word, const Names<E, N>& names) {
  std::array<std::string_view, N> valid;
  for (size_t i = 0; i < N; ++i) {
    if (names[i].first == word) return names[i].second;
    valid[i] = names[i].first;
  }
  throw UnknownName("mask." + std::string(field), field, word, valid);
}

template <typename E, size_t N>
std::string_view NameOf(E value, const Names<E, N>& names) {
  for (const auto& [name, candidate] : names) {
    if (candidate == value) return name;
  }
  return "?";
}

double ParseNumber(std::string_view field, std::string_view word) {
  double value = 0;
  const auto [end, code] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (code != std::errc() || end != word.data() + word.size()) {
    throw Error("mask." + std::string(field), fmt::format("'{}' is not a number", word),
                "give one such as 0.15");
  }
  return value;
}

void SetField(MaskRule* rule, std::string_view field, std::string_view word) {
  if (field == "proximity") {
    rule->proximity = ParseName(field, word, kProximities);
  } else if (field == "direction") {
    rule->direction = ParseName(field, word, kDirections);
  } else if (field == "support") {
    rule->support = ParseName(field, word, kSupports);
  } else if (field == "tail") {
    rule->tail = ParseName(field, word, kTails);
  } else if (field == "action") {
    rule->action = ParseName(field, word, kActions);
  } else if (field == "delta") {
    rule->delta = ParseNumber(field, word);
  } else if (field == "delta_negative") {
    rule->delta_negative = ParseNumber(field, word);
  } else if (field == "clip_low") {
    rule->clip_low = ParseNumber(field, word);
  } else if (field == "clip_high") {
    rule->clip_high = ParseNumber(field, word);
  } else if (field == "ratio_cap") {
    rule->ratio_cap = ParseNumber(field, word);
  } else if (field == "restore_strength") {
    rule->restore_strength = ParseNumber(field, word);
  } else {
    throw UnknownName("mask", "field", field, kFields);
  }
}

void CheckPositive(std::string_view field, double value, std::string_view remedy) {
  if (!std::isfinite(value) || value <= 0) {
    throw Error("mask." + std::string(field), fmt::format("{} is not a finite number above 0", value),
                remedy);
  }
}

MaskRule Divergence(Proximity proximity, Direction direction, Support support, double delta) {
  MaskRule rule;
  rule.proximity = proximity;
  rule.direction = direction;
  rule.support = support;
  rule.delta = delta;
  return rule;
}

}  // namespace

void CheckRule(const MaskRule& rule) {
  CheckPositive("delta", rule.delta, "0.15 suits top-K KL, 0.05 is tight");
  if (rule.delta_negative != 0)
    CheckPositive("delta_negative", rule.delta_negative, "0 takes the value of delta");
  CheckPositive("clip_low", rule.clip_low, "0.2 is usual");
  CheckPositive("clip_high", rule.clip_high, "0.28 is usual");
  if (rule.ratio_cap != 0) CheckPositive("ratio_cap", rule.ratio_cap, "0 leaves the ratio uncut");
  CheckPositive("restore_strength", rule.restore_strength, "1 is the default");
  if (rule.action == Action::kRestore && rule.proximity != Proximity::kKl &&
      rule.proximity != Proximity::kTv) {
    throw Error("mask.action", "restore pulls a token back along a divergence, and this rule has none",
                "set proximity to kl or tv, or action to drop");
  }
}

std::span<const std::string_view> PresetNames() { return kPresets; }

MaskRule PresetRule(std::string_view name) {
  using enum Proximity;
  constexpr auto ratio = Direction::kRatio, predicted = Direction::kPredicted;
  constexpr auto top_k = Support::kTopK, binary = Support::kBinary;
  if (name == "none") return Divergence(kNone, ratio, top_k, 0.15);
  if (name == "clip") return Divergence(kRatio, ratio, top_k, 0.15);
  if (name == "dppo-binary-kl") return Divergence(kKl, ratio, binary, 0.05);
  if (name == "dppo-binary-tv") return Divergence(kTv, ratio, binary, 0.15);
  if (name == "dppo-topk-kl") return Divergence(kKl, ratio, top_k, 0.15);
  if (name == "dppo-topk-tv") return Divergence(kTv, ratio, top_k, 0.15);
  if (name == "predictive-kl-tight") return Divergence(kKl, predicted, top_k, 0.05);
  for (const std::string_view family : {"predictive-kl-", "predictive-tv-"}) {
    for (const auto& [tail_name, tail] : kTails) {
      if (name != std::string(family) + std::string(tail_name)) continue;
      MaskRule rule = Divergence(family == "predictive-kl-" ? kKl : kTv, predicted, top_k, 0.15);
      rule.tail = tail;
      return rule;
    }
  }
  throw UnknownName("mask", "preset", name, kPresets);
}

MaskRule ParseRule(std::string_view text) {
  constexpr std::string_view kSeparators = " ,";
  MaskRule rule;
  bool first = true;
  while (true) {
    const size_t begin = text.find_first_not_of(kSeparators);
    if (begin == std::string_view::npos) break;
    text.remove_prefix(begin);
    const std::string_view word = text.substr(0, text.find_first_of(kSeparators));
    text.remove_prefix(word.size());
    const size_t equals = word.find('=');
    if (equals != std::string_view::npos) {
      SetField(&rule, word.substr(0, equals), word.substr(equals + 1));
    } else if (first) {
      rule = PresetRule(word);
    } else {
      throw Error("mask", fmt::format("'{}' is neither a field=value nor the first word", word),
                  "write a preset's name first, then fields such as delta=0.05");
    }
    first = false;
  }
  CheckRule(rule);
  return rule;
}

std::string FormatRule(const MaskRule& rule) {
  return fmt::format(
      "proximity={} direction={} support={} tail={} action={} delta={} delta_negative={} clip_low={} "
      "clip_high={} "
      "ratio_cap={} restore_strength={}",
      NameOf(rule.proximity, kProximities), NameOf(rule.direction, kDirections),
      NameOf(rule.support, kSupports), NameOf(rule.tail, kTails), NameOf(rule.action, kActions), rule.delta,
      rule.delta_negative, rule.clip_low, rule.clip_high, rule.ratio_cap, rule.restore_strength);
}

}  // namespace augur
