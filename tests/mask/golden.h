// The float64 truth beside the project, where it is present.
#pragma once

#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"

namespace augur {

// Each case expects something of some presets.
inline std::vector<Json> GoldenCases() {
  std::vector<Json> cases;
  for (const char* name : {"mask_cases.jsonl", "mask_cases_2.jsonl"}) {
    const std::filesystem::path path =
        std::filesystem::path(AUGUR_SOURCE_DIR).parent_path() / "shared/golden" / name;
    if (!std::filesystem::exists(path)) continue;
    std::istringstream lines(ReadFile(path));
    for (std::string line; std::getline(lines, line);) cases.push_back(ParseJson(line, path.string()));
  }
  return cases;
}

}  // namespace augur
