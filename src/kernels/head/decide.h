// Token decisions for a batch: ratio, divergence, direction and the mask of one rule, in one pass.
//
// Three versions give the same answers: mask/reference.h (float64, one token), DecideCpu (vectorised,
// threaded) and DecideCuda (one launch). Rules with a statistic of a response or the batch are in
// mask/response_rules.h. The kernels compute in float32 and repeat in float64 every token on
// which rounding could turn the decision, so a decision does not depend on the device. A rule's
// outside_budget is not read: its delta must already be that of the batch.
#pragma once

#include <cstdint>

#include "mask/rule.h"

namespace augur {

// Bits of DecideOutput::flags.
enum DecisionFlag : uint8_t {
  kKept = 1,
  kOutside = 2,
  kOutward = 4,
  kDisagrees = 8,
  kMassClamped = 16,
  kMissing = 32,  // no recorded support: neither kept nor masked
  kCapped = 64,   // the ratio exceeds the rule's cap
};

// T is float or double. All arrays are dense; [T] means one value per token.
template <typename T>
struct DecideInput {
  const T* behaviour = nullptr;    // [tokens, columns] log mu over the support; -inf marks an unused column
  const T* policy = nullptr;       // [tokens, columns] log pi at the same temperature
  const T* advantage = nullptr;    // [tokens]
  const T* tail_square = nullptr;  // [tokens] sum of pi^2 outside the support; null reads as 0
  const T* policy_tail = nullptr;  // [tokens] pi's mass outside the support; null takes one minus the rest
  int64_t tokens = 0;
  int columns = 0;
  int64_t vocab_size = 0;
  const T* tail_cube = nullptr;  // [tokens] sum of pi^3 outside the support; null reads as 0
};

template <typename T>
struct DecideOutput {
  T* ratio = nullptr;
  T* divergence = nullptr;
  T* direction = nullptr;
  uint8_t* flags = nullptr;
  T* coefficient = nullptr;  // what multiplies A grad log pi(sampled); may be null
};

template <typename T>
void DecideCpu(const MaskRule& rule, const DecideInput<T>& in, const DecideOutput<T>& out);

// Pointers are device pointers and `stream` is a cudaStream_t. Throws Error in a build without CUDA.
template <typename T>
void DecideCuda(const MaskRule& rule, const DecideInput<T>& in, const DecideOutput<T>& out, void* stream);

}  // namespace augur
