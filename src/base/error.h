// The one exception type Augur throws for bad input.
#pragma once

#include <fmt/format.h>

#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace augur {

// Says where the fault is (a file and line, an argument, a configuration key), what is wrong, and what the
// user can do about it, in one line of valid UTF-8 without control characters, whatever the parts hold. The
// command line prints what() alone and exits with 2; Python sees a ValueError.
class Error : public std::runtime_error {
 public:
  Error(std::string_view where, std::string_view what, std::string_view remedy);
};

// The same for memory that does not suffice, so that whoever knows the settings behind it can name them.
class MemoryError : public Error {
 public:
  using Error::Error;
};

// A model, a loss or a gradient left the finite numbers: the run broke down, which a comparison counts.
class NotFiniteError : public Error {
 public:
  using Error::Error;
};

// What `f` returns. An Error that it throws, knowing nothing of the place, gets `where` before its message.
template <typename F>
auto AtPlace(std::string_view where, F f) {
  try {
    return f();
  } catch (const Error& error) {
    throw Error(where, error.what(), "");
  }
}

// The candidate that begins with `word` or is closest by edit distance, for "did you mean" remedies. Empty if
// none is close.
std::string NearestName(std::string_view word, std::span<const std::string_view> candidates);

// "unknown mask 'x'; did you mean 'y'? valid: ..." as an Error at `where`.
Error UnknownName(std::string_view where, std::string_view kind, std::string_view word,
                  std::span<const std::string_view> candidates);

}  // namespace augur
