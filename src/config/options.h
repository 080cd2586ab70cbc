// The choices that configuration keys offer.
#pragma once

#include <array>
#include <string_view>

#include "config/field.h"
#include "data/prompt_length.h"
#include "mask/aggregation.h"

namespace augur {

enum class Precision {
  kFp32,
  kBf16,
  kFp8Rollout,  // the trainer in bf16, the rollout copy rounded to FP8
  kFp8,         // FP8 GEMMs in the trainer too
};
template <>
inline constexpr std::array<std::string_view, 4> kNamesOf<Precision>{"fp32", "bf16", "fp8_rollout", "fp8"};

// What the rollouts' keys and values are kept as.
enum class KvPrecision {
  kBf16,  // as the rollout computes: bf16, or fp32 under that precision
  kFp8,   // e4m3 with a scale for each token and head, a power of two
};
template <>
inline constexpr std::array<std::string_view, 2> kNamesOf<KvPrecision>{"bf16", "fp8"};

// Which prompts go through the model's chat format.
enum class ChatUse {
  kConversations,  // those that are lists of messages; plain text is taken as it stands
  kAlways,         // plain text too, as a user's message
};
template <>
inline constexpr std::array<std::string_view, 2> kNamesOf<ChatUse>{"conversations", "always"};

// Qwen3's switch.
enum class Thinking { kDefault, kOn, kOff };
template <>
inline constexpr std::array<std::string_view, 3> kNamesOf<Thinking>{"default", "on", "off"};

// What the ranks of a run divide among themselves.
enum class Shard {
  kNone,    // nothing: each has all of it
  kStates,  // master weights and AdamW's states
  kFull,    // the weights too
  kAuto,    // the first of these with which the model fits
};
template <>
inline constexpr std::array<std::string_view, 4> kNamesOf<Shard>{"none", "states", "full", "auto"};

enum class LossKind {
  kMasked,  // importance-weighted policy gradient under the section `mask`
  kGspo,    // sequence-level ratio, clipped
  kCispo,   // the clipped ratio as a detached weight
  kTis,     // truncated importance sampling
};
template <>
inline constexpr std::array<std::string_view, 4> kNamesOf<LossKind>{"masked", "gspo", "cispo", "tis"};

enum class KlEstimator { kK1, kK2, kK3 };
template <>
inline constexpr std::array<std::string_view, 3> kNamesOf<KlEstimator>{"k1", "k2", "k3"};

// What ratios and divergences are measured from.
enum class Anchor {
  kRollout,     // the log-probs the rollout engine recorded
  kRecomputed,  // the trainer's own forward before the first update
};
template <>
inline constexpr std::array<std::string_view, 2> kNamesOf<Anchor>{"rollout", "recomputed"};

enum class Schedule { kConstant, kCosine };
template <>
inline constexpr std::array<std::string_view, 2> kNamesOf<Schedule>{"constant", "cosine"};

enum class StateDtype { kFp32, kBf16 };
template <>
inline constexpr std::array<std::string_view, 2> kNamesOf<StateDtype>{"fp32", "bf16"};

enum class GradientDtype { kFp32, kBf16, kFp64 };
template <>
inline constexpr std::array<std::string_view, 3> kNamesOf<GradientDtype>{"fp32", "bf16", "fp64"};

// Which activations the backward computes again instead of keeping them.
enum class ActivationCheckpoint { kNone, kSelective, kFull };
template <>
inline constexpr std::array<std::string_view, 3> kNamesOf<ActivationCheckpoint>{"none", "selective", "full"};

}  // namespace augur
