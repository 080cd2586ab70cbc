#include "metrics/point_record.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/random.h"
#include "metrics/append_lines.h"

namespace augur {
namespace {

// The `count` indices with the smallest random words.
std::vector<size_t> Draw(std::vector<size_t> indices, size_t count, uint64_t seed, int64_t step) {
  if (indices.size() <= count) return indices;
  const auto word = [&](size_t i) { return Philox::At(seed, i, static_cast<uint64_t>(step)).word[0]; };
  std::ranges::nth_element(indices, indices.begin() + static_cast<std::ptrdiff_t>(count), {},
                           [&](size_t i) { return std::pair(word(i), i); });
  indices.resize(count);
  return indices;
}

// Five digits are more than a plot shows.
double Rounded(float value) {
  if (!std::isfinite(value) || value == 0) return value;
  const double unit = std::pow(10.0, std::floor(std::log10(std::abs(value))) - 4);
  return std::round(value / unit) * unit;
}

float ReadNumber(const Json& value, std::string_view where) {
  if (value.is_null()) return std::numeric_limits<float>::quiet_NaN();
  if (!value.is_number())
    throw Error(where, "a point holds something else than numbers", "the file is damaged");
  return value.get<float>();
}

}  // namespace

PointsRecord SamplePoints(int64_t step, std::span<const TokenPoint> all, size_t limit, uint64_t seed) {
  std::vector<size_t> outside, inside;
  for (size_t i = 0; i < all.size(); ++i) (all[i].flags & kPointOutside ? outside : inside).push_back(i);
  PointsRecord record{step, static_cast<int64_t>(all.size()), static_cast<int64_t>(outside.size()), {}};
  const size_t outside_places = limit - std::min(limit / 2, inside.size());
  std::vector<size_t> chosen = Draw(outside, outside_places, seed, step);
  const std::vector<size_t> rest = Draw(inside, limit - chosen.size(), seed, step);
  chosen.insert(chosen.end(), rest.begin(), rest.end());
  std::ranges::sort(chosen);
  for (const size_t i : chosen) record.points.push_back(all[i]);
  return record;
}

Json ToJson(const PointsRecord& record) {
  Json points = Json::array();
  for (const TokenPoint& p : record.points) {
    points.push_back(
        {Rounded(p.ratio), Rounded(p.divergence), Rounded(p.direction), Rounded(p.advantage), p.flags});
  }
  return {{"step", record.step},
          {"tokens", record.tokens},
          {"outside", record.outside},
          {"points", std::move(points)}};
}

PointsRecord PointsFromJson(const Json& line, std::string_view where) {
  PointsRecord record;
  const auto integer = [&](const char* key) {
    const Json& value = RequireKey(line, key, where);
    if (!value.is_number_integer()) {
      throw Error(where, fmt::format("\"{}\" is no whole number", key), "the file is damaged");
    }
    return value.get<int64_t>();
  };
  record.step = integer("step");
  record.tokens = integer("tokens");
  record.outside = integer("outside");
  for (const Json& point : RequireKey(line, "points", where)) {
    if (!point.is_array() || point.size() != 5 || !point[4].is_number_integer()) {
      throw Error(where, "a point is not [ratio, divergence, direction, advantage, flags]",
                  "the file is damaged");
    }
    record.points.push_back({ReadNumber(point[0], where), ReadNumber(point[1], where),
                             ReadNumber(point[2], where), ReadNumber(point[3], where), point[4].get<int>()});
  }
  return record;
}

void AppendPoints(const std::filesystem::path& run, const PointsRecord& record) {
  AppendLines(run / kPointsFile, ToJson(record).dump() + '\n');
}

}  // namespace augur
