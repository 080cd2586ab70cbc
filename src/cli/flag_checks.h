// Checks of flags whose messages say what is wrong with the value.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <string>

#include "base/hub.h"

namespace augur {

template <typename T>
std::string ParseWhole(const std::string& text, T* value) {
  const char* end = text.data() + text.size();
  const auto [stop, fault] = std::from_chars(text.data(), end, *value);
  if (fault == std::errc::result_out_of_range) return fmt::format("{} is too large", text);
  return fault != std::errc() || stop != end ? fmt::format("'{}' is not a whole number", text) : "";
}

inline CLI::Validator AtLeast(int64_t least) {
  return CLI::Validator(
      [least](std::string& text) {
        int64_t value = 0;
        const std::string fault = ParseWhole(text, &value);
        if (!fault.empty()) return fault;
        return value < least ? fmt::format("{} is less than {}", value, least) : "";
      },
      "");
}

inline CLI::Validator Within(int64_t least, int64_t most) {
  return CLI::Validator(
      [least, most](std::string& text) {
        int64_t value = 0;
        const std::string fault = ParseWhole(text, &value);
        if (!fault.empty()) return fault;
        return value < least || value > most ? fmt::format("{} is not within {} and {}", value, least, most)
                                             : "";
      },
      "");
}

// A fraction; "nan" is none.
inline CLI::Validator Between(double least, double most) {
  return CLI::Validator(
      [least, most](std::string& text) {
        double value = 0;
        const char* end = text.data() + text.size();
        const auto [stop, fault] = std::from_chars(text.data(), end, value);
        const bool within = fault == std::errc() && stop == end && value >= least && value <= most;
        return within ? "" : fmt::format("'{}' is not within {} and {}", text, least, most);
      },
      "");
}

// A seed: 0 to 2^64 - 1.
inline CLI::Validator Seed() {
  return CLI::Validator(
      [](std::string& text) {
        uint64_t value = 0;
        const std::string fault = ParseWhole(text, &value);
        return fault.empty() ? "" : fault + "; give 0 to 18446744073709551615";
      },
      "");
}

// A model: a directory, or one of the hub, whose directory it becomes.
inline CLI::Validator ModelPath() {
  return CLI::Validator(
      [](std::string& path) {
        path = ModelDirectory(path);
        return std::string();
      },
      "");
}

}  // namespace augur
