// BPE of words too long to search through again and again: a linked list and a queue of pairs by rank.
#include <queue>

#include "text/bpe.h"

namespace augur {
namespace {

struct Candidate {
  uint32_t rank;
  uint32_t position;  // of the left symbol
  uint32_t left, right;
  bool operator>(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : position > other.position;
  }
};

}  // namespace

void Bpe::MergeLong(std::vector<uint32_t>* symbols) const {
  const auto count = static_cast<uint32_t>(symbols->size());
  std::vector<uint32_t> next(count), previous(count);
  for (uint32_t i = 0; i < count; ++i) {
    next[i] = i + 1;
    previous[i] = i - 1;  // wraps to kAbsent for the first
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto consider = [&](uint32_t left) {
    if (left == kAbsent || next[left] >= count) return;
    const uint32_t a = (*symbols)[left], b = (*symbols)[next[left]];
    if (const uint32_t rank = merges_.Find(a, b).first; rank != kAbsent) queue.push({rank, left, a, b});
  };
  for (uint32_t i = 0; i + 1 < count; ++i) consider(i);
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    const uint32_t left = top.position, right = next[left];
    // Stale when a merge since has taken one of the two away.
    if ((*symbols)[left] != top.left || right >= count || (*symbols)[right] != top.right) continue;
    (*symbols)[left] = merges_.Find(top.left, top.right).second;
    (*symbols)[right] = kAbsent;
    next[left] = next[right];
    if (next[left] < count) previous[next[left]] = left;
    consider(left);
    consider(previous[left]);
  }
  std::erase(*symbols, kAbsent);
}

}  // namespace augur
