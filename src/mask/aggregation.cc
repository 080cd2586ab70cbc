#include "mask/aggregation.h"

#include <algorithm>
#include <map>

#include "base/error.h"

namespace augur {

std::vector<float> TokenWeights(Aggregation aggregation, std::span<const int64_t> sequence, int64_t horizon) {
  if (horizon < 0)
    throw Error("horizon", fmt::format("is {}", horizon), "pass the longest response allowed, or 0");
  std::map<int64_t, int64_t> lengths;
  int64_t counted = 0, longest = 0;
  for (size_t t = 0; t < sequence.size(); ++t) {
    if (sequence[t] < -1) {
      throw Error(fmt::format("sequences: token {}", t), fmt::format("is {}", sequence[t]),
                  "number sequences from 0; -1 leaves a token out");
    }
    if (sequence[t] == -1) continue;
    longest = std::max(longest, ++lengths[sequence[t]]);
    ++counted;
  }
  if (horizon == 0) horizon = longest;
  const double sequences = static_cast<double>(lengths.size());
  const auto weight = [&](int64_t length) -> double {
    switch (aggregation) {
      case Aggregation::kTokenMean:
        return 1.0 / static_cast<double>(counted);
      case Aggregation::kTokenSum:
        return 1;
      case Aggregation::kSeqMeanTokenMean:
        return 1 / (sequences * static_cast<double>(length));
      case Aggregation::kSeqMeanTokenSum:
        return 1 / sequences;
      case Aggregation::kSeqMeanTokenSumNorm:
        return 1 / (sequences * static_cast<double>(horizon));
    }
    return 0;
  };
  std::vector<float> weights(sequence.size(), 0);
  for (size_t t = 0; t < sequence.size(); ++t) {
    if (sequence[t] >= 0) weights[t] = static_cast<float>(weight(lengths[sequence[t]]));
  }
  return weights;
}

}  // namespace augur
