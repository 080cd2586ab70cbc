// How long the responses of a benchmark are: all alike, or as those of reasoning models are.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

namespace augur {

struct ResponseLengths {
  std::string kind = "equal";

  bool long_tailed() const { return kind == "long-tailed"; }
  // Of the response with this key: `most`, or log-normal with an eighth of it as the median, 2% of all as
  // long.
  int64_t Of(uint64_t key, int64_t most) const;
  void AddFlag(CLI::App* command);
};

}  // namespace augur
