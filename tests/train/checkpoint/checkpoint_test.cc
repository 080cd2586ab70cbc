#include "train/checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"

namespace augur {
namespace {

namespace fs = std::filesystem;

void Write(const CheckpointStore& store, int64_t step, int64_t keep) {
  store.Begin(step);
  std::ofstream(store.Unfinished(step) / "tensors.safetensors") << "weights";
  store.Publish(step, keep);
}

class CheckpointStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    run_ = fs::path(testing::TempDir()) / testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(run_);
    fs::create_directories(run_ / "checkpoints");
  }
  fs::path run_;
};

// A checkpoint that the pointer does not name belongs to a line that was left, so that a process killed
// between the two writes must not leave one.
TEST_F(CheckpointStoreTest, NothingIsPublishedThatCannotBePointedTo) {
  const CheckpointStore store(run_);
  const fs::path pointer = store.directory() / "latest_checkpointed_iteration.txt";
  fs::create_directory(pointer);
  std::ofstream(pointer / "in the way") << "";
  EXPECT_THROW(Write(store, 1, 1), Error);
  EXPECT_TRUE(store.Steps().empty());
}

TEST_F(CheckpointStoreTest, TheOneBeforeServesWhenThePointedToWasNotPublished) {
  const CheckpointStore store(run_);
  Write(store, 1, 0);
  store.Point(2);
  EXPECT_EQ(store.FindCurrent([](const std::string& line) { ADD_FAILURE() << line; }), store.PathOf(1));
}

TEST_F(CheckpointStoreTest, OneThatWasCompleteAndPointedToIsPublished) {
  const CheckpointStore store(run_);
  Write(store, 1, 0);
  fs::rename(store.PathOf(1), store.Unfinished(1));  // killed before the rename
  store.Begin(2);
  store.TidyUnfinished();
  EXPECT_EQ(store.Steps(), std::vector<int64_t>{1});
  EXPECT_EQ(WhyDamaged(store.PathOf(1)), std::nullopt);
  EXPECT_FALSE(fs::exists(store.Unfinished(2)));
}

TEST_F(CheckpointStoreTest, OneThatWasPointedToAndIsDamagedIsNot) {
  const CheckpointStore store(run_);
  Write(store, 1, 0);
  fs::rename(store.PathOf(1), store.Unfinished(1));
  std::ofstream(store.Unfinished(1) / "tensors.safetensors") << "half";
  store.TidyUnfinished();
  EXPECT_TRUE(store.Steps().empty());
  EXPECT_FALSE(fs::exists(store.Unfinished(1)));
}

TEST_F(CheckpointStoreTest, TheNewestRemain) {
  const CheckpointStore store(run_);
  for (int64_t step = 1; step <= 4; ++step) Write(store, step, 2);
  EXPECT_EQ(store.Steps(), (std::vector<int64_t>{3, 4}));
}

TEST_F(CheckpointStoreTest, ADamagedFileIsNamedWithWhatIsWrongAndTheOneBeforeIsTaken) {
  const CheckpointStore store(run_);
  for (int64_t step = 1; step <= 3; ++step) Write(store, step, 0);
  const fs::path file = store.PathOf(3) / "tensors.safetensors";
  EXPECT_EQ(WhyDamaged(store.PathOf(3)), std::nullopt);
  std::ofstream(file) << "weighty";
  EXPECT_EQ(WhyDamaged(store.PathOf(3)), "tensors.safetensors fails its checksum");
  std::ofstream(file) << "weights and more";
  EXPECT_EQ(WhyDamaged(store.PathOf(3)), "tensors.safetensors has 16 bytes instead of 7");
  fs::remove(file);
  EXPECT_EQ(WhyDamaged(store.PathOf(3)), "tensors.safetensors is missing");
  fs::remove(store.PathOf(2) / "manifest.json");
  std::vector<std::string> warnings;
  const auto warn = [&](const std::string& line) { warnings.push_back(line); };
  EXPECT_EQ(store.FindCurrent(warn), store.PathOf(1));
  ASSERT_EQ(warnings.size(), 2u);
  EXPECT_NE(warnings[0].find("global_step_3 is damaged"), std::string::npos);
  EXPECT_NE(warnings[1].find("manifest.json is missing"), std::string::npos);
}

TEST_F(CheckpointStoreTest, WhatLiesBehindThePointerIsNotTakenAndMovesAside) {
  const CheckpointStore store(run_);
  for (int64_t step = 1; step <= 3; ++step) Write(store, step, 0);
  store.Point(2);
  EXPECT_EQ(store.Pointer(), 2);
  EXPECT_EQ(store.FindCurrent([](const std::string&) {}), store.PathOf(2));
  const fs::path folder = store.MakeAbandoned();
  EXPECT_EQ(folder.filename(), "abandoned-1");
  store.MoveAfter(1, folder);
  EXPECT_EQ(store.Steps(), std::vector<int64_t>{1});
  EXPECT_TRUE(fs::exists(folder / "global_step_2") && fs::exists(folder / "global_step_3"));
  EXPECT_EQ(store.MakeAbandoned().filename(), "abandoned-2");
  store.Point(0);
  EXPECT_THROW(store.FindCurrent([](const std::string&) {}), Error);
  store.MoveAfter(-1, folder);
  EXPECT_EQ(store.Pointer(), std::nullopt);
  EXPECT_TRUE(store.Steps().empty());
}

TEST_F(CheckpointStoreTest, OneThatCannotBeWrittenNamesTheNewestThatIsThere) {
  const CheckpointStore store(run_);
  store.Begin(5);
  EXPECT_NE(std::string(store.GiveUp(5, std::runtime_error("disk full")).what())
                .find("checkpoint of step 5: disk full; no checkpoint has been written yet"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(store.Unfinished(5)));
  Write(store, 2, 0);
  Write(store, 4, 0);
  EXPECT_NE(
      std::string(store.GiveUp(5, std::runtime_error("disk full")).what()).find("global_step_4: make room"),
      std::string::npos);
}

}  // namespace
}  // namespace augur
