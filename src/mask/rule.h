// Trust-region masks as proximity x direction: which tokens are outside, and which updates point outward.
//
// A token's gradient is dropped iff the policy is outside the trust region around the behaviour policy and
// the update would take it further. docs/masks.md explains the rules and docs/rules.md lists them;
// reference.h computes them in float64.
#pragma once

#include <array>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include "base/host_device.h"
#include "base/names.h"

namespace augur {

// Which distance from the behaviour policy decides that a token is outside. Divergences stand last.
enum class Proximity {
  kNone,       // nothing is ever outside: plain importance-weighted policy gradient
  kRatio,      // the sampled token's ratio leaves [1 - clip_low, 1 + clip_high] (PPO, GRPO clip-higher)
  kKl,         // forward KL, KL(mu || pi), over the support exceeds delta
  kTv,         // total variation over the support exceeds delta
  kReverseKl,  // reverse KL, KL(pi || mu), over the support exceeds delta
};
template <>
inline constexpr std::array<std::string_view, 5> kNamesOf<Proximity>{"none", "ratio", "kl", "tv",
                                                                     "reverse_kl"};

// Whether it is a divergence over the support, with a change that can be predicted and a gradient.
AUGUR_HOST_DEVICE bool IsDivergence(Proximity proximity) { return proximity >= Proximity::kKl; }

// All divergences.
inline constexpr size_t kFirstDivergence = static_cast<size_t>(Proximity::kKl);
inline constexpr auto kDivergenceNames = std::span(kNamesOf<Proximity>).subspan<kFirstDivergence>();
inline constexpr auto kDivergences = [] {
  std::array<Proximity, kDivergenceNames.size()> all{};
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<Proximity>(kFirstDivergence + i);
  return all;
}();

// How an update is judged to point outward.
enum class Direction {
  kRatio,      // advantage x (ratio - 1) > 0, read from the sampled token alone
  kPredicted,  // advantage x (first-order change of the divergence) > 0
  // The divergence that a step of size eta would lead to is compared with delta instead of the present one.
  kSecondOrder,
  kAny,  // always, where the advantage is not 0: what is outside is masked
};
template <>
inline constexpr std::array<std::string_view, 4> kNamesOf<Direction>{"ratio", "predicted", "second_order",
                                                                     "any"};

// Whether the change of the divergence decides, whose tail has a model.
AUGUR_HOST_DEVICE bool Predicts(Direction direction) {
  return direction == Direction::kPredicted || direction == Direction::kSecondOrder;
}

// Over which atoms the divergence is taken.
enum class Support {
  kTopK,    // the recorded support, with everything else as one tail bucket
  kBinary,  // the sampled token against the rest
};
template <>
inline constexpr std::array<std::string_view, 2> kNamesOf<Support>{"topk", "binary"};

// How the tail, where the behaviour policy was not recorded, enters the predicted change.
enum class TailModel {
  kAggregated,  // one bucket
  kUniform,     // spread evenly over the unseen tokens
  kExact,       // from the sum of squares of the policy's own tail probabilities
};
template <>
inline constexpr std::array<std::string_view, 3> kNamesOf<TailModel>{"aggregated", "uniform", "exact"};

// How the bounds of a ratio depend on the sampled token's mu.
enum class RatioWindow {
  kFixed,  // clip_low and clip_high
  kRipo,   // sqrt(delta / mu) on both sides, within clip_low and clip_high
  kDcpo,   // DCPO's: wide where mu is small, up to a ratio of 10
};
template <>
inline constexpr std::array<std::string_view, 3> kNamesOf<RatioWindow>{"fixed", "ripo", "dcpo"};

// What multiplies A grad log pi of a token that passes.
enum class Weight {
  kRatio,  // the ratio
  kSapo,   // 4 s (1 - s) r with s the sigmoid of tau (r - 1)
  kSpo,    // r (1 - sign(A) (r - 1) / epsilon)
  kDrpo,   // the same with mu (r - 1)
  kTopr,   // 1 where A >= 0, the ratio up to 1 where A < 0
};
template <>
inline constexpr std::array<std::string_view, 5> kNamesOf<Weight>{"ratio", "sapo", "spo", "drpo", "topr"};

// What is added to the loss of every token, masked or not, times penalty_coef.
enum class Penalty {
  kNone,
  kLogRatio,  // (log r)^2
  kRatio,     // (r - 1)^2
};
template <>
inline constexpr std::array<std::string_view, 3> kNamesOf<Penalty>{"none", "log_ratio", "ratio"};

// Whose statistic decides: the token's, or one of its response or batch. docs/rules.md has the formulas.
enum class Scope {
  kToken,
  kGspo,
  kGmpo,
  kTrm,
  kOpsm,
  kMisSequence,
  kMisGeometric,
  kVaco,
  kVespo,
  kCppo,
  kM2po,
};
template <>
inline constexpr std::array<std::string_view, 11> kNamesOf<Scope>{
    "token", "gspo", "gmpo", "trm", "opsm", "mis_sequence", "mis_geometric", "vaco", "vespo", "cppo", "m2po"};

// Which numbers a field may hold: above `above` and below `below`, or 0 where that switches it off.
struct NumberRange {
  double above = 0, below = std::numeric_limits<double>::infinity();
  bool zero_is_off = false;
};
inline constexpr NumberRange kNamed{}, kPositive{}, kPositiveOrOff{.zero_is_off = true},
    kAboveOneOrOff{.above = 1, .zero_is_off = true}, kShareOrOff{.below = 1, .zero_is_off = true};

// Every field of a rule: type, name, default, range (of a number), and what it does. MaskRule, the text form,
// the section `mask` of a configuration and augur.MaskRule in Python are all made from this list.
// clang-format off
#define AUGUR_MASK_FIELDS(FIELD)                                                                             \
  FIELD(Proximity, proximity, Proximity::kKl, kNamed,                                                        \
        "The distance that decides what is outside: never, the sampled token's ratio, or a divergence of "   \
        "the policy from the one that sampled.")                                                             \
  FIELD(Direction, direction, Direction::kPredicted, kNamed,                                                 \
        "How an update is judged to point outward: A (r - 1) > 0, A times the predicted change of the "      \
        "divergence > 0, or any: every update does; second_order masks what a step of size eta would take "  \
        "beyond delta.")                                                                                     \
  FIELD(Support, support, Support::kTopK, kNamed,                                                            \
        "The divergence's atoms: topk, the recorded support and a tail, or binary, the sampled token and "   \
        "the rest.")                                                                                         \
  FIELD(TailModel, tail, TailModel::kAggregated, kNamed,                                                     \
        "How the tail enters the prediction: as one token, spread evenly, or from the policy's own sum of "  \
        "squares.")                                                                                          \
  FIELD(double, delta, 0.15, kPositive,                                                                      \
        "Tokens with a larger divergence are outside; 0.15 suits top-K KL, 0.05 is tight.")                  \
  FIELD(double, delta_negative, 0, kPositiveOrOff,                                                           \
        "The threshold for negative advantages; 0 takes delta.")                                             \
  FIELD(double, clip_low, 0.2, kPositive, "proximity ratio: outside below 1 - clip_low.")                    \
  FIELD(double, clip_high, 0.28, kPositive, "proximity ratio: outside above 1 + clip_high.")                 \
  FIELD(double, dual_clip, 0, kAboveOneOrOff,                                                                \
        "PPO's dual clip: tokens with a negative advantage and a ratio above this are masked too, whatever " \
        "the direction; 3 is usual, 0 is off.")                                                              \
  FIELD(double, ratio_cap, 0, kPositiveOrOff,                                                                \
        "Cuts the ratio in the loss and its gradient, never in the decision; 0 leaves it uncut.")            \
  FIELD(double, outside_budget, 0, kShareOrOff,                                                              \
        "Sets delta for every batch so that this share of its tokens is outside; 0 keeps delta.")       \
  FIELD(double, eta, 0.1, kPositive,                                                                         \
        "direction second_order: how far the predicted step goes along A r grad log pi(sampled).")           \
  FIELD(RatioWindow, window, RatioWindow::kFixed, kNamed,                                                    \
        "proximity ratio: how the bounds depend on the sampled token's mu. fixed: not at all; ripo: "        \
        "sqrt(delta / mu); dcpo: DCPO's, from clip_low and clip_high.")                                      \
  FIELD(Weight, weight, Weight::kRatio, kNamed,                                                              \
        "What multiplies the gradient of a token that passes: its ratio, or a smooth function of it.")       \
  FIELD(double, tau_positive, 1, kPositive,                                                                  \
        "weight sapo: the sigmoid's slope where A > 0; scope vespo: lambda where A >= 0.")                   \
  FIELD(double, tau_negative, 1.05, kPositive, "The same where A is not.")                                   \
  FIELD(double, epsilon, 12.5, kPositive,                                                                    \
        "weight spo and drpo: how far the ratio is from 1 where the weight is 0; drpo divides it by mu.")    \
  FIELD(Penalty, penalty, Penalty::kNone, kNamed,                                                            \
        "Added to the loss of every token, masked or not: (log r)^2 or (r - 1)^2, times penalty_coef.")      \
  FIELD(double, penalty_coef, 0, kPositiveOrOff, "The penalty's coefficient.")                               \
  FIELD(Scope, scope, Scope::kToken, kNamed,                                                                 \
        "Whose statistic decides: the token's, or by one of these rules its response's or batch's.")         \
  FIELD(double, delta_mean, 0.01, kPositive,                                                                 \
        "scope trm: the threshold on the response's mean; delta is that on its largest token.")              \
  FIELD(double, position_floor, 0.8, kShareOrOff,                                                            \
        "scope cppo: the weight of a response's last token; that of the first is 1.")                        \
  FIELD(double, prefix_budget, 0.02, kPositive,                                                              \
        "scope cppo: the mean divergence that a prefix may have; up to twice as much where the response's "  \
        "90th percentile is larger.")
// clang-format on

struct MaskRule {
#define AUGUR_MEMBER(type, name, initial, range, description) type name = initial;
  AUGUR_MASK_FIELDS(AUGUR_MEMBER)
#undef AUGUR_MEMBER

  bool operator==(const MaskRule&) const = default;
};

// The ratio's logarithm is clamped to this magnitude before it is exponentiated.
inline constexpr double kLogRatioLimit = 20;

// The ratio's largest bound under RatioWindow::kDcpo.
inline constexpr double kDcpoLargestRatio = 10;

// Throws Error naming the field when a value is out of range or does not go with the others.
void CheckRule(const MaskRule& rule);
// Throws Error naming the field of a rule that `Decide` can judge and the policy losses cannot follow yet.
void CheckRuleOfLoss(const MaskRule& rule);
// Whether tokens are compared with delta.
bool ReadsDelta(const MaskRule& rule);

// One field of the list, for those who read and write rules.
struct RuleField {
  std::string_view name, description;
  std::span<const std::string_view> choices;  // none for a number
  NumberRange range;
};
std::span<const RuleField> RuleFields();
// "kl | tv | ...", "number, above 0", ...
std::string RuleFieldKind(const RuleField& field);
// The value of the field of that name; text as ParseRule reads it. Both throw Error for an unknown name, the
// second for a value that is none. Whether the fields go together CheckRule says.
std::string RuleFieldText(const MaskRule& rule, std::string_view name);
void SetRuleField(std::string_view name, std::string_view text, MaskRule* rule);

// The named rules of docs/rules.md. Throws Error with the nearest name for an unknown one.
MaskRule PresetRule(std::string_view name);
std::span<const std::string_view> PresetNames();

// A rule as text and back: a preset's name, or fields "proximity=kl direction=predicted ..." separated by
// spaces or commas, each field optional and defaulting as above; a preset may be followed by fields that
// change it. The result is checked.
MaskRule ParseRule(std::string_view text);
std::string FormatRule(const MaskRule& rule);

}  // namespace augur
