// The part of `augur doctor` that needs a model.
#pragma once

#include <cstdint>
#include <string>

#include "cli/engine_flags.h"

namespace augur {

struct ParityOptions {
  EngineFlags engine;
  std::string tokens_input;
  int64_t prompts = 8;
  int64_t tokens = 64;
  uint64_t seed = 0;
  bool json = false;
};

// Prints the report of each precision. Throws ExitCode where fp32 on the CPU misses its bound.
void ShowParity(const ParityOptions& options);

}  // namespace augur
