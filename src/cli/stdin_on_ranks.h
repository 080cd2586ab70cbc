// Standard input where several processes share it.
#pragma once

#include <iostream>
#include <iterator>
#include <string>

#include "ops/parallel/ranks.h"

namespace augur {

// All of it, read by the first rank, on every rank.
inline std::string StdinOnRanks() {
  const Ranks ranks = Ranks::World();
  std::string text;
  if (ranks.first()) {
    std::ios::sync_with_stdio(false);
    text.assign(std::istreambuf_iterator<char>(std::cin), {});
  }
  return ranks.FromFirst(text);
}

}  // namespace augur
