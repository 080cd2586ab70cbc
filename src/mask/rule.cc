#include "mask/rule.h"

#include <fmt/ranges.h>

#include <charconv>
#include <cmath>
#include <type_traits>
#include <vector>

#include "base/error.h"

namespace augur {
namespace {

struct Preset {
  std::string_view name, fields;
};

constexpr Preset kPresets[] = {
    {"none", "proximity=none direction=ratio"},
    {"clip", "proximity=ratio direction=ratio"},
    {"clip-dual", "proximity=ratio direction=ratio dual_clip=3"},
    {"dppo-binary-kl", "proximity=kl direction=ratio support=binary delta=0.05"},
    {"dppo-binary-tv", "proximity=tv direction=ratio support=binary"},
    {"dppo-topk-kl", "proximity=kl direction=ratio"},
    {"dppo-topk-tv", "proximity=tv direction=ratio"},
    {"dppo-topk-reverse-kl", "proximity=reverse_kl direction=ratio"},
    {"predictive-kl-aggregated", "proximity=kl tail=aggregated"},
    {"predictive-kl-uniform", "proximity=kl tail=uniform"},
    {"predictive-kl-exact", "proximity=kl tail=exact"},
    {"predictive-tv-aggregated", "proximity=tv tail=aggregated"},
    {"predictive-tv-uniform", "proximity=tv tail=uniform"},
    {"predictive-tv-exact", "proximity=tv tail=exact"},
    {"predictive-reverse-kl-aggregated", "proximity=reverse_kl tail=aggregated"},
    {"predictive-reverse-kl-uniform", "proximity=reverse_kl tail=uniform"},
    {"predictive-reverse-kl-exact", "proximity=reverse_kl tail=exact"},
    {"predictive-kl-tight", "proximity=kl delta=0.05"},
    {"predictive-kl-second-order", "proximity=kl direction=second_order tail=exact"},
    {"dppo-topk-kl-any", "proximity=kl direction=any"},
    {"ipo", "proximity=tv direction=any support=binary delta=0.1 penalty=log_ratio penalty_coef=0.001"},
    {"icepop", "proximity=ratio direction=any clip_low=0.5 clip_high=4"},
    {"mis-token", "proximity=ratio direction=any clip_low=0.5 clip_high=1"},
    {"cispo", "proximity=none direction=ratio ratio_cap=1.28"},
    {"tis", "proximity=none direction=ratio ratio_cap=2"},
    {"ripo", "proximity=ratio direction=ratio window=ripo delta=0.05 clip_low=0.5 clip_high=9"},
    {"dcpo", "proximity=ratio direction=ratio window=dcpo clip_low=0.16 clip_high=0.2"},
    {"sapo", "proximity=none direction=ratio weight=sapo"},
    {"spo", "proximity=none direction=ratio weight=spo"},
    {"drpo", "proximity=none direction=ratio weight=drpo"},
    {"topr", "proximity=none direction=ratio weight=topr"},
    {"r2vpo", "proximity=none direction=ratio penalty=ratio penalty_coef=0.1"},
    {"gspo", "proximity=ratio direction=ratio scope=gspo clip_low=0.0003 clip_high=0.0004"},
    {"gmpo", "proximity=ratio direction=ratio scope=gmpo clip_low=0.4 clip_high=0.4"},
    {"mis-sequence", "proximity=ratio direction=any scope=mis_sequence clip_low=0.5 clip_high=1"},
    {"mis-geometric", "proximity=ratio direction=any scope=mis_geometric clip_low=0.001 clip_high=0.001"},
    {"trm", "proximity=none direction=any scope=trm delta=2.5"},
    {"opsm", "proximity=none direction=any scope=opsm delta=0.0001"},
    {"vaco", "proximity=none direction=ratio scope=vaco"},
    {"vespo", "proximity=none direction=any scope=vespo tau_positive=3 tau_negative=2"},
    {"cppo", "proximity=none direction=ratio scope=cppo"},
    {"m2po", "proximity=none direction=ratio scope=m2po delta=0.04"},
};

// Calls visit(name, value) with every field of a rule.
template <typename Rule, typename Visit>
void ForEachField(Rule& rule, Visit visit) {
#define AUGUR_VISIT(type, name, initial, range, description) visit(std::string_view(#name), rule.name);
  AUGUR_MASK_FIELDS(AUGUR_VISIT)
#undef AUGUR_VISIT
}

template <typename T>
constexpr std::span<const std::string_view> ChoicesOf() {
  if constexpr (std::is_enum_v<T>) {
    return kNamesOf<T>;
  } else {
    return {};
  }
}

constexpr RuleField kFields[] = {
#define AUGUR_DESCRIBE(type, name, initial, range, description) \
  {#name, description, ChoicesOf<type>(), range},
    AUGUR_MASK_FIELDS(AUGUR_DESCRIBE)
#undef AUGUR_DESCRIBE
};

std::string Key(std::string_view field) { return fmt::format("mask.{}", field); }

const RuleField& FieldNamed(std::string_view name) {
  std::vector<std::string_view> names;
  for (const RuleField& field : kFields) {
    if (field.name == name) return field;
    names.push_back(field.name);
  }
  throw UnknownName("mask", "field", name, names);
}

double ParseNumber(std::string_view field, std::string_view word) {
  double value = 0;
  const auto [end, code] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (code != std::errc() || end != word.data() + word.size()) {
    throw Error(Key(field), fmt::format("'{}' is not a number", word), "give one such as 0.15");
  }
  return value;
}

std::string Allowed(const NumberRange& range) {
  return std::isfinite(range.below) ? fmt::format("above {} and below {}", range.above, range.below)
                                    : fmt::format("above {}", range.above);
}

void CheckNumber(const RuleField& field, double value) {
  const NumberRange& range = field.range;
  if (value == 0 && range.zero_is_off) return;
  if (std::isfinite(value) && value > range.above && value < range.below) return;
  throw Error(Key(field.name), fmt::format("{} is not a finite number {}", value, Allowed(range)),
              range.zero_is_off ? "0 leaves it out"
                                : fmt::format("the default is {}", RuleFieldText(MaskRule(), field.name)));
}

// Without checking the rule that results.
void Assign(std::string_view name, std::string_view text, MaskRule* rule) {
  FieldNamed(name);
  ForEachField(*rule, [&](std::string_view field, auto& value) {
    using T = std::remove_reference_t<decltype(value)>;
    if (field != name) return;
    if constexpr (std::is_enum_v<T>) {
      value = ParseName<T>(Key(field), field, text);
    } else {
      value = ParseNumber(field, text);
    }
  });
}

// Those of whole responses compare their ratio with clip_low and clip_high.
bool ScopeReadsClip(Scope scope) {
  return scope == Scope::kGspo || scope == Scope::kGmpo || scope == Scope::kMisSequence ||
         scope == Scope::kMisGeometric;
}

void CheckScope(const MaskRule& rule) {
  if (rule.scope == Scope::kToken) return;
  const std::string_view name = NameOf(rule.scope);
  const Proximity wanted = ScopeReadsClip(rule.scope) ? Proximity::kRatio : Proximity::kNone;
  if (rule.proximity != wanted) {
    throw Error("mask.proximity",
                fmt::format("is {}, and scope {} decides otherwise", NameOf(rule.proximity), name),
                fmt::format("set it to {}, or begin with the preset of that name", NameOf(wanted)));
  }
  const auto refuse = [&](bool set, std::string_view field) {
    if (!set) return;
    throw Error(fmt::format("mask.{}", field),
                fmt::format("is a choice for each token, and scope is {}", name),
                "leave it out, or set scope to token");
  };
  refuse(rule.window != RatioWindow::kFixed, "window");
  refuse(rule.weight != Weight::kRatio, "weight");
  refuse(rule.penalty != Penalty::kNone, "penalty");
  refuse(rule.dual_clip > 0, "dual_clip");
  refuse(rule.ratio_cap > 0, "ratio_cap");
  refuse(rule.delta_negative > 0, "delta_negative");
}

// The next word of a text whose words are separated by spaces or commas, or an empty one.
std::string_view TakeWord(std::string_view* text) {
  constexpr std::string_view kSeparators = " ,";
  text->remove_prefix(std::min(text->find_first_not_of(kSeparators), text->size()));
  const std::string_view word = text->substr(0, text->find_first_of(kSeparators));
  text->remove_prefix(word.size());
  return word;
}

}  // namespace

std::span<const RuleField> RuleFields() { return kFields; }

std::string RuleFieldKind(const RuleField& field) {
  if (!field.choices.empty()) return fmt::format("{}", fmt::join(field.choices, " | "));
  return fmt::format("number, {}{}", Allowed(field.range), field.range.zero_is_off ? ", or 0" : "");
}

std::string RuleFieldText(const MaskRule& rule, std::string_view name) {
  FieldNamed(name);
  std::string text;
  ForEachField(rule, [&](std::string_view field, const auto& value) {
    if (field != name) return;
    if constexpr (std::is_enum_v<std::remove_cvref_t<decltype(value)>>) {
      text = NameOf(value);
    } else {
      text = fmt::format("{}", value);
    }
  });
  return text;
}

void SetRuleField(std::string_view name, std::string_view text, MaskRule* rule) {
  MaskRule changed = *rule;
  Assign(name, text, &changed);
  ForEachField(changed, [&](std::string_view field, const auto& value) {
    if constexpr (!std::is_enum_v<std::remove_cvref_t<decltype(value)>>) {
      if (field == name) CheckNumber(FieldNamed(name), value);
    }
  });
  *rule = changed;
}

void CheckRule(const MaskRule& rule) {
  ForEachField(rule, [](std::string_view name, const auto& value) {
    if constexpr (!std::is_enum_v<std::remove_cvref_t<decltype(value)>>) {
      CheckNumber(FieldNamed(name), value);
    }
  });
  if (rule.outside_budget > 0 && !IsDivergence(rule.proximity)) {
    throw Error("mask.outside_budget", "sets delta, and this rule has no divergence to compare with it",
                fmt::format("set proximity to {}, or outside_budget to 0", OneOf(kDivergenceNames)));
  }
  if (rule.direction == Direction::kSecondOrder && rule.proximity != Proximity::kKl) {
    throw Error("mask.direction",
                "second_order needs the curvature of KL, and this rule has another proximity",
                "set proximity to kl, or direction to predicted");
  }
  if (rule.window != RatioWindow::kFixed && rule.proximity != Proximity::kRatio) {
    throw Error("mask.window", "sets the bounds of the ratio, and this rule compares none with them",
                "set proximity to ratio, or window to fixed");
  }
  if ((rule.penalty == Penalty::kNone) != (rule.penalty_coef == 0)) {
    throw Error("mask.penalty_coef",
                fmt::format("is {} while penalty is {}", rule.penalty_coef, NameOf(rule.penalty)),
                "set both, or neither");
  }
  if (rule.ratio_cap > 0 && rule.weight != Weight::kRatio) {
    throw Error("mask.ratio_cap", fmt::format("cuts the ratio, and weight is {}", NameOf(rule.weight)),
                "set one of the two");
  }
  CheckScope(rule);
  if (rule.outside_budget > 0 && rule.delta_negative > 0) {
    throw Error("mask.outside_budget", "sets one delta for all tokens, and delta_negative is a second",
                "set one of the two to 0");
  }
}

void CheckRuleOfLoss(const MaskRule& rule) {
  if (rule.direction == Direction::kSecondOrder && rule.tail == TailModel::kExact) {
    throw Error("mask.tail", "the loss does not follow second_order with the exact tail; augur.decide does",
                "set tail to uniform or aggregated");
  }
  if (rule.scope != Scope::kToken) {
    throw Error(
        "mask.scope",
        fmt::format("the loss does not follow {}; augur.decide and the trainer do", NameOf(rule.scope)),
        "choose a rule that decides token by token; docs/rules.md lists them");
  }
}

bool ReadsDelta(const MaskRule& rule) {
  if (rule.scope == Scope::kToken) return IsDivergence(rule.proximity) || rule.window == RatioWindow::kRipo;
  return !ScopeReadsClip(rule.scope) && rule.scope != Scope::kVespo;
}

std::span<const std::string_view> PresetNames() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> all;
    for (const Preset& preset : kPresets) all.push_back(preset.name);
    return all;
  }();
  return names;
}

MaskRule PresetRule(std::string_view name) {
  for (const Preset& preset : kPresets) {
    if (preset.name == name) return ParseRule(preset.fields);
  }
  throw UnknownName("mask", "preset", name, PresetNames());
}

MaskRule ParseRule(std::string_view text) {
  MaskRule rule;
  bool first = true;
  for (std::string_view word = TakeWord(&text); !word.empty(); word = TakeWord(&text)) {
    const size_t equals = word.find('=');
    if (equals != std::string_view::npos) {
      Assign(word.substr(0, equals), word.substr(equals + 1), &rule);
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
  std::vector<std::string> words;
  for (const RuleField& field : kFields) {
    words.push_back(fmt::format("{}={}", field.name, RuleFieldText(rule, field.name)));
  }
  return fmt::format("{}", fmt::join(words, " "));
}

}  // namespace augur
