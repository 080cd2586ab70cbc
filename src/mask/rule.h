// Trust-region masks as proximity x direction: which tokens are outside, and which updates point outward.
//
// A token's gradient is dropped iff the policy is outside the trust region around the behaviour policy and
// the update would take it further. docs/masks.md explains the rules; reference.h computes them in float64.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace augur {

// Which distance from the behaviour policy decides that a token is outside.
enum class Proximity {
  kNone,   // nothing is ever outside: plain importance-weighted policy gradient
  kRatio,  // the sampled token's ratio leaves [1 - clip_low, 1 + clip_high] (PPO, GRPO clip-higher)
  kKl,     // forward KL over the support exceeds delta
  kTv,     // total variation over the support exceeds delta
};

// How an update is judged to point outward.
enum class Direction {
  kRatio,      // advantage x (ratio - 1) > 0, read from the sampled token alone
  kPredicted,  // advantage x (first-order change of the divergence) > 0
};

// Over which atoms the divergence is taken.
enum class Support {
  kTopK,    // the recorded support, with everything else as one tail bucket
  kBinary,  // the sampled token against the rest
};

// How the tail, where the behaviour policy was not recorded, enters the predicted change.
enum class TailModel {
  kAggregated,  // one bucket
  kUniform,     // spread evenly over the unseen tokens
  kExact,       // from the sum of squares of the policy's own tail probabilities
};

// What a masked token contributes.
enum class Action {
  kDrop,     // nothing: the paper's rule
  kRestore,  // the gradient of restore_strength * |ratio * advantage * weight| * divergence, pulling it back
};

struct MaskRule {
  Proximity proximity = Proximity::kKl;
  Direction direction = Direction::kPredicted;
  Support support = Support::kTopK;
  TailModel tail = TailModel::kAggregated;
  Action action = Action::kDrop;
  // Tokens with a divergence strictly above delta are outside. 0.15 suits top-K KL; 0.05 is tight.
  double delta = 0.15;
  // The threshold for tokens with a negative advantage; 0 takes delta.
  double delta_negative = 0;
  // The ratio window of Proximity::kRatio.
  double clip_low = 0.2;
  double clip_high = 0.28;
  // The ratio is cut to this value in the loss and its gradient, never in the decision; 0 leaves it uncut.
  double ratio_cap = 0;
  // The factor c of Action::kRestore.
  double restore_strength = 1;

  bool operator==(const MaskRule&) const = default;
};

// The ratio's logarithm is clamped to this magnitude before it is exponentiated.
inline constexpr double kLogRatioLimit = 20;

// Throws Error naming the field when a value is out of range (delta <= 0 or not finite, ...).
void CheckRule(const MaskRule& rule);

// The named rules: none, clip, dppo-*, predictive-*. Throws Error with the nearest name for an unknown one.
MaskRule PresetRule(std::string_view name);
std::span<const std::string_view> PresetNames();

// A rule as text and back: a preset's name, or fields "proximity=kl direction=predicted ..." separated by
// spaces or commas, each field optional and defaulting as above; a preset may be followed by fields that
// change it. The result is checked.
MaskRule ParseRule(std::string_view text);
std::string FormatRule(const MaskRule& rule);

}  // namespace augur
