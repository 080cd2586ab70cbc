#include "train/parallel/shares.h"

#include <algorithm>
#include <numeric>

namespace augur {

std::vector<std::vector<size_t>> BalancedShares(std::span<const int64_t> lengths, int ranks) {
  std::vector<size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return lengths[a] > lengths[b]; });
  std::vector<std::vector<size_t>> shares(static_cast<size_t>(ranks));
  std::vector<int64_t> tokens(shares.size());
  for (const size_t place : order) {
    const auto least = static_cast<size_t>(std::ranges::min_element(tokens) - tokens.begin());
    shares[least].push_back(place);
    tokens[least] += lengths[place];
  }
  for (std::vector<size_t>& share : shares) std::ranges::sort(share);
  return shares;
}

void CutFurther(std::span<const int64_t> lengths, size_t count, std::vector<size_t>* cuts) {
  const auto tokens = [&](size_t begin, size_t end) {
    return std::accumulate(lengths.begin() + static_cast<std::ptrdiff_t>(begin),
                           lengths.begin() + static_cast<std::ptrdiff_t>(end), int64_t{0});
  };
  while (cuts->size() < count + 1) {
    int64_t most = 0;
    size_t longest = 0;
    for (size_t i = 0; i + 1 < cuts->size(); ++i) {
      const size_t begin = (*cuts)[i], end = (*cuts)[i + 1];
      if (end - begin < 2 || tokens(begin, end) <= most) continue;
      most = tokens(begin, end);
      longest = i;
    }
    if (most == 0) return;
    const size_t begin = (*cuts)[longest], end = (*cuts)[longest + 1];
    size_t middle = begin + 1;
    while (middle + 1 < end && 2 * tokens(begin, middle) < most) ++middle;
    cuts->insert(cuts->begin() + static_cast<std::ptrdiff_t>(longest) + 1, middle);
  }
}

}  // namespace augur
