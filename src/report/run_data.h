// Everything the page shows of one run directory.
#pragma once

#include <cstddef>
#include <filesystem>

#include "base/json.h"
#include "metrics/json_lines.h"

namespace augur {

// What the page is made from.
inline constexpr const char* kRunFiles[] = {"config.yaml",  "metrics.jsonl", "summary.json", "points.jsonl",
                                            "tokens.jsonl", "analysis.json", "compare.json", "frontier.json"};

// How much of a run goes onto the page.
struct RunLimits {
  size_t steps = 2000;   // of each curve
  size_t points = 3000;  // of the scatter plots
  size_t token_bytes = 0;
  bool only_facts = false;  // neither curves nor points nor tokens
};

// {"name", "path", "notes": [text], "config": {"section.key": text}, "summary", "metrics", "points",
// "tokens", "analysis", "compare", "frontier"}; parts that are absent are null. Throws Error where `run` is
// no directory.
Json ReadRun(const std::filesystem::path& run, const RunLimits& limits);

// config.yaml as {"section.key": text}; null, with a note, where there is none.
Json ReadRunConfig(const std::filesystem::path& run, Notes* notes);

}  // namespace augur
