// Metrics over steps, as the page's charts take them.
#pragma once

#include <cstddef>
#include <filesystem>

#include "base/json.h"
#include "metrics/json_lines.h"

namespace augur {

// metrics.jsonl as {"steps": [...], "series": {name: {"x": [...], "y": [...]}}}; a series without "x" has a
// value at every step. Where there are more than `limit` steps every second, third, ... is kept, and the
// last. A value that is no finite number is left out. Null, with a note, where nothing is to be had.
Json ReadSeries(const std::filesystem::path& run, size_t limit, Notes* notes);

// points.jsonl as {"tokens": n, "outside": n, "points": [[step, ratio, divergence, direction, advantage,
// flags]]}, thinned evenly to at most `limit` points. Null where there is none.
Json ReadPoints(const std::filesystem::path& run, size_t limit, Notes* notes);

}  // namespace augur
