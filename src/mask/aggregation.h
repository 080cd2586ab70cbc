// How token losses become one number: each aggregation is a weight per token, so that splitting a batch into
// micro-batches changes nothing.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/names.h"

namespace augur {

// With n tokens in all, N sequences that have any, and l tokens in a sequence:
enum class Aggregation {
  kTokenMean,            // 1 / n
  kTokenSum,             // 1
  kSeqMeanTokenMean,     // 1 / (N l)
  kSeqMeanTokenSum,      // 1 / N
  kSeqMeanTokenSumNorm,  // 1 / (N horizon)
};
template <>
inline constexpr std::array<std::string_view, 5> kNamesOf<Aggregation>{
    "token-mean", "token-sum", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"};

// One weight per token. `sequence[t]` is the sequence token t belongs to (any numbering from 0), or -1 for a
// token that does not count, whose weight is 0. `horizon` is read by kSeqMeanTokenSumNorm only; 0 takes the
// longest sequence.
std::vector<float> TokenWeights(Aggregation aggregation, std::span<const int64_t> sequence, int64_t horizon);

}  // namespace augur
