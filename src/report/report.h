// The report: one self-contained HTML page about one or more run directories.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"

namespace augur {

// Reads what the run directories hold (config.yaml, summary.json, metrics.jsonl, points.jsonl, tokens.jsonl,
// analysis.json, compare.json, frontier.json) and writes the page to `out`. What is missing, cut off or
// damaged is named on the page; the rest is shown. Tokens and long series are sampled so that the page stays
// below `limit` bytes, and the page says so. Throws Error where a run is not a directory, or `out` cannot be
// written.
inline constexpr size_t kReportLimit = 10'000'000;
void WriteReport(std::span<const std::filesystem::path> runs, const std::filesystem::path& out,
                 size_t limit = kReportLimit);

// Whether a file is a page that WriteReport wrote.
bool IsReport(const std::filesystem::path& file);

// The page of runs as LiveRun shows them; it asks its server for more (watch.h).
std::string LivePage(std::vector<Json> runs);

}  // namespace augur
