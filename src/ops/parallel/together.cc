#include "ops/parallel/together.h"

#include <fmt/format.h>

#include <sstream>

#include "base/error.h"

namespace augur {

void ExpectSame(const Ranks& ranks, const std::string& what, const std::string& mine,
                const std::string& remedy) {
  const std::string first = ranks.FromFirst(mine);
  ranks.Together([&] {
    if (mine == first) return;
    const auto next = [](std::istream& in) {
      std::string line;
      return std::getline(in, line) ? line : std::string("nothing");
    };
    std::istringstream own(mine), other(first);
    std::string here = next(own), there = next(other);
    while (here == there && own) here = next(own), there = next(other);
    throw Error(what, fmt::format("are not those of the first rank: '{}' here, '{}' there", here, there),
                remedy);
  });
}

}  // namespace augur
