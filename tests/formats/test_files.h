// What the tests of file formats share: a directory of their own, and the message of an Error.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "message_of.h"

namespace augur {

// Whether a message contains what it should say.
inline testing::AssertionResult Says(std::string_view message, std::string_view part) {
  if (message.find(part) != std::string_view::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "\"" << message << "\" does not say \"" << part << "\"";
}

inline std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// The little-endian bytes of a number.
template <typename T>
std::string Raw(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

class FormatsTest : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(dir_); }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  void Put(const std::string& name, std::string_view content) {
    std::ofstream(dir_ / name, std::ios::binary) << content;
  }

  const std::filesystem::path dir_ =
      std::filesystem::temp_directory_path() / ("augur-formats-" + std::to_string(getpid()));
};

}  // namespace augur
