#include "train/checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"

namespace augur {
namespace {

namespace fs = std::filesystem;

void Fill(const fs::path& directory) { std::ofstream(directory / "tensors.safetensors") << "weights"; }

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
  EXPECT_THROW(store.Write(1, 1, Fill), Error);
  EXPECT_TRUE(store.Steps().empty());
}

TEST_F(CheckpointStoreTest, TheOneBeforeServesWhenThePointedToWasNotPublished) {
  const CheckpointStore store(run_);
  store.Write(1, 0, Fill);
  store.Point(2);
  EXPECT_EQ(store.FindCurrent([](const std::string& line) { ADD_FAILURE() << line; }), store.PathOf(1));
}

TEST_F(CheckpointStoreTest, TheNewestRemain) {
  const CheckpointStore store(run_);
  for (int64_t step = 1; step <= 4; ++step) store.Write(step, 2, Fill);
  EXPECT_EQ(store.Steps(), (std::vector<int64_t>{3, 4}));
}

}  // namespace
}  // namespace augur
