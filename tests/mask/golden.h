// The float64 truth beside the project, where it is present.
#pragma once

#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"

namespace augur {

inline std::vector<Json> GoldenCases() {
  const std::filesystem::path path =
      std::filesystem::path(AUGUR_SOURCE_DIR).parent_path() / "shared/golden/mask_cases.jsonl";
  std::vector<Json> cases;
  if (!std::filesystem::exists(path)) return cases;
  std::istringstream lines(ReadFile(path));
  for (std::string line; std::getline(lines, line);) cases.push_back(ParseJson(line, path.string()));
  return cases;
}

}  // namespace augur
