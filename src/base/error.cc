#include "base/error.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "base/utf8.h"

namespace augur {
namespace {

// Messages quote what was read, which may hold anything, and go to terminals.
std::string OneLine(std::string_view message) {
  std::string line;
  for (const char c : LossyUtf8(message)) {
    if (c == '\n') {
      line += "\\n";
    } else if (c == '\r') {
      line += "\\r";
    } else {
      line += c;
    }
  }
  return Visible(line);
}

std::string Compose(std::string_view where, std::string_view what, std::string_view remedy) {
  std::string message;
  if (!where.empty()) message += fmt::format("{}: ", where);
  message += what;
  if (!remedy.empty()) message += fmt::format("; {}", remedy);
  return OneLine(message);
}

// Of letters that are wrong, missing, too many, or two that changed places.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> before, above, row(b.size() + 1);  // row[j]: from the letters of a so far to j of b
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    before = std::exchange(above, row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j - 1] + (a[i - 1] != b[j - 1]), above[j] + 1, row[j - 1] + 1});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row.back();
}

}  // namespace

Error::Error(std::string_view where, std::string_view what, std::string_view remedy)
    : std::runtime_error(Compose(where, what, remedy)) {}

std::string NearestName(std::string_view word, std::span<const std::string_view> candidates) {
  const auto nearest = std::ranges::min_element(
      candidates, {}, [&](std::string_view name) { return EditDistance(word, name); });
  const auto begun = std::ranges::find_if(
      candidates, [&](std::string_view name) { return !word.empty() && name.starts_with(word); });
  if (begun != candidates.end()) return std::string(*begun);
  // Beyond that, more is changed than is kept.
  const size_t most = std::max<size_t>(1, word.size() / 2);
  const bool near = nearest != candidates.end() && EditDistance(word, *nearest) <= most;
  return near ? std::string(*nearest) : std::string();
}

Error UnknownName(std::string_view where, std::string_view kind, std::string_view word,
                  std::span<const std::string_view> candidates) {
  const std::string nearest = NearestName(word, candidates);
  return Error(where, fmt::format("unknown {} '{}'", kind, word),
               fmt::format("{}alid: {}", nearest.empty() ? "v" : fmt::format("did you mean '{}'? V", nearest),
                           fmt::join(candidates, ", ")));
}

}  // namespace augur
