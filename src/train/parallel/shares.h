// Who learns from what: the samples of a minibatch spread over the ranks so that each has about as many
// tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace augur {

// Of samples with these lengths, the places each of `ranks` ranks takes, rising. The longest go first, each
// to the rank with fewest tokens so far. One rank takes all.
std::vector<std::vector<size_t>> BalancedShares(std::span<const int64_t> lengths, int ranks);

// Cuts (first places and the end) into as many pieces as `count` where there are samples enough, by halving
// the longest piece that has more than one.
void CutFurther(std::span<const int64_t> lengths, size_t count, std::vector<size_t>* cuts);

}  // namespace augur
