// Sampled tokens for the report's scatter plots (divergence against direction and ratio), one JSON line per
// step in RUN/points.jsonl:
//
//   {"step": 12, "tokens": 9000, "outside": 40, "points": [[ratio, divergence, direction, advantage, flags],
//   ...]}
//
// tokens and outside count the whole step. Outside tokens are few and are what one looks for, so they take up
// to half of the places.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "base/json.h"

namespace augur {

inline constexpr const char* kPointsFile = "points.jsonl";  // in the run directory

// Bits of TokenPoint::flags.
enum PointFlag : int { kPointOutside = 1, kPointMasked = 2, kPointDisagrees = 4 };

struct TokenPoint {
  float ratio = 1, divergence = 0, direction = 0, advantage = 0;
  int flags = 0;
};

struct PointsRecord {
  int64_t step = 0;
  int64_t tokens = 0, outside = 0;
  std::vector<TokenPoint> points;
};

// `limit` of the points, drawn by `seed` and the step alone, in their order.
PointsRecord SamplePoints(int64_t step, std::span<const TokenPoint> all, size_t limit, uint64_t seed);

Json ToJson(const PointsRecord& record);
// Throws Error at `where` where the line is not such a record.
PointsRecord PointsFromJson(const Json& line, std::string_view where);

// Appends a line to RUN/points.jsonl.
void AppendPoints(const std::filesystem::path& run, const PointsRecord& record);

}  // namespace augur
