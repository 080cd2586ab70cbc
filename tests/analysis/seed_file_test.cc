#include "analysis/seed_file.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "message_of.h"

namespace augur {
namespace {

namespace fs = std::filesystem;

TEST(SeedFile, ComesBackAsItWasWritten) {
  const fs::path folder = fs::path(testing::TempDir()) / "augur_seed_file";
  fs::create_directories(folder);
  SeedOutcome outcome;
  outcome.seed = 7;
  outcome.tokens = 100;
  outcome.outside = {{1, 2, 3, -0.5, 1.25, 0.75}, {4, 5, 6, 1, std::nan(""), 0.5}};
  outcome.unmasked_change = {0.1, -0.2};
  outcome.criteria = {{"ratio", {0.25, -0.25}, {true, false}, {0.3, -0.4}, 0.6},
                      {"other", {1, 2}, {false, false}, {3, 4}, std::nan("")}};
  outcome.parts = {{1, 0.1, 0.2, 0.3, 0.4}};
  outcome.momentum_cosine = -0.75;
  WriteSeedRecord(folder, 7, {96, true, {outcome, SeedOutcome()}});
  const SeedRecord record = ReadSeedRecord(folder, 7);
  EXPECT_EQ(record.sequences, 96);
  EXPECT_TRUE(record.full_vocabulary);
  ASSERT_EQ(record.outcomes.size(), 2u);
  const SeedOutcome& got = record.outcomes[0];
  EXPECT_EQ(got.seed, 7);
  EXPECT_EQ(got.tokens, 100);
  ASSERT_EQ(got.outside.size(), 2u);
  EXPECT_EQ(got.outside[0].sequence, 1);
  EXPECT_EQ(got.outside[0].position, 2);
  EXPECT_EQ(got.outside[0].id, 3);
  EXPECT_EQ(got.outside[0].advantage, -0.5);
  EXPECT_EQ(got.outside[0].ratio, 1.25);
  EXPECT_EQ(got.outside[0].divergence, 0.75);
  EXPECT_TRUE(std::isnan(got.outside[1].ratio));
  EXPECT_EQ(got.unmasked_change, outcome.unmasked_change);
  ASSERT_EQ(got.criteria.size(), 2u);
  EXPECT_EQ(got.criteria[0].name, "ratio");
  EXPECT_EQ(got.criteria[0].direction, outcome.criteria[0].direction);
  EXPECT_EQ(got.criteria[0].keep, outcome.criteria[0].keep);
  EXPECT_EQ(got.criteria[0].change, outcome.criteria[0].change);
  EXPECT_EQ(got.criteria[0].surrogate_kept, 0.6);
  EXPECT_TRUE(std::isnan(got.criteria[1].surrogate_kept));
  ASSERT_EQ(got.parts.size(), 1u);
  EXPECT_EQ(got.parts[0].token, 1u);
  EXPECT_EQ(got.parts[0].own, 0.1);
  EXPECT_EQ(got.parts[0].others, 0.2);
  EXPECT_EQ(got.parts[0].momentum, 0.3);
  EXPECT_EQ(got.parts[0].weight_decay, 0.4);
  EXPECT_EQ(got.momentum_cosine, -0.75);
  std::ofstream(SeedFile(folder, 8)) << "{}";
  EXPECT_NE(MessageOf([&] { ReadSeedRecord(folder, 8); }).find("seed-8.json: is no record"),
            std::string::npos);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace augur
