#include "cli/study_figures.h"

#include <fmt/format.h>

#include <cmath>
#include <vector>

namespace augur {
namespace {

bool IsNumber(const Json& value) { return value.is_number() && std::isfinite(value.get<double>()); }

std::vector<double> ValuesOfSeeds(const Json& figure) {
  std::vector<double> values;
  for (const Json& value : figure.value("by_seed", Json::array())) {
    if (IsNumber(value)) values.push_back(value);
  }
  return values;
}

}  // namespace

std::string PercentAndInterval(const Json& figure) {
  if (!IsNumber(figure["mean"])) return "-";
  const std::string mean = fmt::format("{:.1f}", 100 * figure["mean"].get<double>());
  if (const auto seeds = ValuesOfSeeds(figure); seeds.size() == 2) {
    return fmt::format("{} ({:.1f}, {:.1f})", mean, 100 * seeds[0], 100 * seeds[1]);
  }
  if (!IsNumber(figure["low"])) return mean;
  return fmt::format("{} [{:.1f}, {:.1f}]", mean, 100 * figure["low"].get<double>(),
                     100 * figure["high"].get<double>());
}

std::string PValue(const Json& difference) {
  if (!IsNumber(difference["p"])) return "-";
  const double p = difference["p"];
  return p < 0.001 ? "<0.001" : fmt::format("{:.3f}", p);
}

}  // namespace augur
