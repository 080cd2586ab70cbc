#include "data/fingerprint.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace augur {
namespace {

namespace fs = std::filesystem;

// Larger than what is read whole.
TEST(Fingerprint, OfLargeWeightsSeesTheBeginningTheEndAndWhatIsSpreadOver) {
  const fs::path model = fs::path(testing::TempDir()) / "fingerprint_weights";
  fs::create_directories(model);
  std::string bytes(9 << 20, 'a');
  const auto with = [&](const std::string& content) {
    std::ofstream(model / "model.safetensors", std::ios::binary) << content;
    return FingerprintWeights(model);
  };
  const Json before = ToJson(with(bytes));
  EXPECT_TRUE(ChangedFiles(before, with(bytes)).empty());
  for (const size_t at : {size_t{0}, bytes.size() - 1}) {
    std::string other = bytes;
    other[at] = 'b';
    EXPECT_EQ(ChangedFiles(before, with(other)).size(), 1) << at;
  }
  std::string shifted = bytes;
  for (size_t i = 0; i < shifted.size(); i += 4096) shifted[i] = 'b';
  EXPECT_EQ(ChangedFiles(before, with(shifted)).size(), 1);
  EXPECT_EQ(ChangedFiles(before, with(bytes + "a")).size(), 1);
}

}  // namespace
}  // namespace augur
