// metrics.jsonl of a run directory: {"step":12,"data":{"actor/pg_loss":0.1,...}} a line.
#pragma once

#include <cstdint>
#include <filesystem>

#include "metrics/step_metrics.h"

namespace augur {

inline constexpr const char* kMetricsFile = "metrics.jsonl";

// Appends a line to RUN/metrics.jsonl. A figure that is not finite is written as null.
void AppendMetrics(const std::filesystem::path& run, int64_t step, const Metrics& metrics);

// The largest step of a file of lines {"step":N,...}; -1 where there is none.
int64_t LastStep(const std::filesystem::path& path);

// Rewrites a file of lines {"step":N,...} without those after `step`, without what cannot be read as such a
// line and without a last line that was cut off, so that a resumed run appends where its checkpoint stood.
// Nothing happens where the file does not exist. The new file replaces the old one in one stroke.
void KeepLinesUpToStep(const std::filesystem::path& path, int64_t step);

}  // namespace augur
