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

TEST(Fingerprint, SaysWhatBecameOfEachFile) {
  const std::vector<FileFingerprint> before = {{"same", 3, "aa"}, {"longer", 3, "aa"}, {"other", 3, "aa"},
                                               {"gone", 3, "aa"}, {"new", 0, ""},      {"unnamed", 3, "aa"},
                                               {"absent", 0, ""}};
  const std::vector<FileFingerprint> now = {{"same", 3, "aa"}, {"longer", 5, "bb"}, {"other", 3, "bb"},
                                            {"gone", 0, ""},   {"new", 3, "aa"},    {"added", 3, "aa"},
                                            {"absent", 0, ""}};
  EXPECT_EQ(ChangedFiles(ToJson(before), now),
            (std::vector<std::string>{"longer: 3 -> 5 bytes", "other: other content", "gone: is gone",
                                      "new: was not there"}));
}

TEST(Fingerprint, TakesEveryFileOnceAndNoTask) {
  const fs::path file = fs::path(testing::TempDir()) / "fingerprint.jsonl";
  std::ofstream(file) << "{}";
  const auto found = Fingerprint({file.string(), "task:sort", file.string()});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].path, file.string());
  EXPECT_EQ(found[0].size, 2u);
  EXPECT_EQ(found[0].checksum.size(), 16u);
}

}  // namespace
}  // namespace augur
