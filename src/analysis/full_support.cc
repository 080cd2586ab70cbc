#include "analysis/full_support.h"

#include <limits>

namespace augur {

RecordedSupport KeepTopK(const RecordedSupport& whole, int64_t k) {
  RecordedSupport cut;
  cut.columns = k + 1;
  for (size_t begin = 0; begin < whole.ids.size(); begin += static_cast<size_t>(whole.columns)) {
    // The others stand in falling order, so the sampled token is among the k most likely iff fewer than k of
    // them are more likely.
    const float sampled = whole.logprobs[begin];
    int64_t above = 0;
    while (above + 1 < whole.columns && whole.logprobs[begin + static_cast<size_t>(above) + 1] > sampled)
      ++above;
    const int64_t others = above < k ? k - 1 : k;
    for (int64_t c = 0; c <= k; ++c) {
      const bool used = c <= others && c < whole.columns;
      cut.ids.push_back(used ? whole.ids[begin + static_cast<size_t>(c)] : -1);
      cut.logprobs.push_back(used ? whole.logprobs[begin + static_cast<size_t>(c)]
                                  : -std::numeric_limits<float>::infinity());
    }
  }
  return cut;
}

}  // namespace augur
