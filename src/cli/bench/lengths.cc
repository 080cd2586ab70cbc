#include "cli/bench/lengths.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/random.h"

namespace augur {

int64_t ResponseLengths::Of(uint64_t key, int64_t most) const {
  if (!long_tailed()) return most;
  const Philox random = Philox::At(8, 0, key);
  const double normal =
      std::sqrt(-2 * std::log(random.Uniform(0))) * std::cos(2 * std::numbers::pi * random.Uniform(1));
  const double length = static_cast<double>(most) / 8 * std::exp(normal);
  return std::clamp<int64_t>(std::llround(length), 1, most);
}

void ResponseLengths::AddFlag(CLI::App* command) {
  command
      ->add_option("--lengths", kind,
                   "equal, or long-tailed: log-normal with an eighth of --new as the median, --new at most")
      ->capture_default_str()
      ->check(CLI::IsMember({"equal", "long-tailed"}));
}

}  // namespace augur
