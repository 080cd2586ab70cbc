// The float64 truth of tests/data/make_mask_cases.py.
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"

namespace augur {

// Each case expects something of every preset.
inline std::vector<Json> GoldenCases() {
  const std::string path = AUGUR_SOURCE_DIR "/tests/data/mask_cases.jsonl";
  std::vector<Json> cases;
  std::istringstream lines(ReadFile(path));
  for (std::string line; std::getline(lines, line);) cases.push_back(ParseJson(line, path));
  return cases;
}

}  // namespace augur
