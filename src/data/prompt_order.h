// The order in which prompts are taken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace augur {

// Positions 0, 1, 2, ... of a run mapped to indices into a prompt set. Each epoch (size consecutive
// positions) visits every prompt once, in an order that is a pure function of (size, seed, epoch) and the
// same on every machine; so a run resumes from its position alone.
class PromptOrder {
 public:
  // `size` is not 0. Without shuffle, every epoch runs 0 to size - 1.
  PromptOrder(size_t size, uint64_t seed, bool shuffle);

  size_t At(uint64_t position);

 private:
  size_t size_;
  uint64_t seed_;
  bool shuffle_;
  uint64_t epoch_ = 0;
  std::vector<size_t> order_;  // of epoch_; empty until first used
};

// A uniformly random permutation of 0 .. size - 1: Fisher and Yates's shuffle from the last element down,
// where element i changes places with element (w * (i + 1)) >> 64, w the first 64 bits of Philox at key
// `seed`, low counter i and high counter 0x70726F6D00000000 + epoch.
std::vector<size_t> EpochOrder(size_t size, uint64_t seed, uint64_t epoch);

}  // namespace augur
