#include "cli/study_figures.h"

#include <fmt/format.h>

#include <cmath>

namespace augur {
namespace {

bool IsNumber(const Json& value) { return value.is_number() && std::isfinite(value.get<double>()); }

}  // namespace

std::string PercentAndInterval(const Json& figure) {
  if (!IsNumber(figure["mean"])) return "-";
  const std::string mean = fmt::format("{:.1f}", 100 * figure["mean"].get<double>());
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
