#include "data/prompt_order.h"

#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/random.h"

namespace augur {
namespace {

// Keeps these numbers apart from what else is drawn with the same seed.
constexpr uint64_t kOrderStream = uint64_t{0x70726F6D} << 32;  // "prom"

}  // namespace

std::vector<size_t> EpochOrder(size_t size, uint64_t seed, uint64_t epoch) {
  std::vector<size_t> order(size);
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = size; i-- > 1;) {
    const Philox random = Philox::At(seed, i, kOrderStream + epoch);
    const uint64_t word = uint64_t{random.word[1]} << 32 | random.word[0];
    const auto j = static_cast<size_t>(static_cast<unsigned __int128>(word) * (i + 1) >> 64);
    std::swap(order[i], order[j]);
  }
  return order;
}

PromptOrder::PromptOrder(size_t size, uint64_t seed, bool shuffle)
    : size_(size), seed_(seed), shuffle_(shuffle) {
  if (size == 0) throw Error("data", "there are no prompts to order", "check data.files");
}

size_t PromptOrder::At(uint64_t position) {
  const uint64_t epoch = position / size_;
  const auto offset = static_cast<size_t>(position % size_);
  if (!shuffle_) return offset;
  if (order_.empty() || epoch != epoch_) {
    order_ = EpochOrder(size_, seed_, epoch);
    epoch_ = epoch;
  }
  return order_[offset];
}

}  // namespace augur
