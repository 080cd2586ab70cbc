#include "train/checkpoint/state_tensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "base/error.h"

namespace augur {
namespace {

namespace fs = std::filesystem;

class StateFilesTest : public testing::Test {
 protected:
  StateFilesTest() {
    fs::remove_all(directory_);
    fs::create_directories(directory_);
    std::iota(values_.begin(), values_.end(), 1.0f);
  }
  ~StateFilesTest() override { fs::remove_all(directory_); }

  // Of a tensor whose elements are 1, 2, ...: the part [begin, begin + count) under that name.
  TensorSource Part(const std::string& name, int64_t begin, int64_t count) const {
    return SourceOf(
        name, DType::kF32, {count},
        std::as_bytes(std::span(values_).subspan(static_cast<size_t>(begin), static_cast<size_t>(count))));
  }
  std::vector<float> Read(int64_t begin, int64_t count, int64_t whole, DType type = DType::kF32) const {
    const std::vector<std::byte> bytes = StateFiles(directory_).Read("x", type, begin, count, whole);
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  std::vector<float> values_ = std::vector<float>(10);
  const fs::path directory_ = fs::path(testing::TempDir()) / "augur_state_files";
};

TEST_F(StateFilesTest, ATensorIsReadAloneWhereItHasTheSizeAndTypeThatIsNeeded) {
  WriteSafetensors(directory_ / "tensors.safetensors", {Part("x", 0, 6)}, {});
  EXPECT_EQ(Read(0, 6, 6), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_THROW(Read(0, 4, 4), Error);
  EXPECT_THROW(Read(0, 8, 8), Error);
  EXPECT_THROW(Read(0, 6, 6, DType::kI32), Error);
}

TEST_F(StateFilesTest, WhatRanksWroteInPartsIsReadInOthers) {
  WriteSafetensors(directory_ / "tensors-00001-of-00002.safetensors", {Part("x@0", 0, 4)}, {});
  WriteSafetensors(directory_ / "tensors-00002-of-00002.safetensors", {Part("x@4", 4, 6)}, {});
  EXPECT_EQ(Read(0, 10, 10), values_);
  EXPECT_EQ(Read(3, 2, 10), (std::vector<float>{4, 5}));
  EXPECT_EQ(Read(7, 3, 10), (std::vector<float>{8, 9, 10}));
  EXPECT_EQ(StateFiles(directory_).size(), 1u);
  EXPECT_THROW(Read(0, 4, 4), Error);
  EXPECT_THROW(Read(0, 4, 11), Error);
}

TEST_F(StateFilesTest, AGapIsNoTensor) {
  WriteSafetensors(directory_ / "tensors-00001-of-00002.safetensors", {Part("x@0", 0, 4)}, {});
  WriteSafetensors(directory_ / "tensors-00002-of-00002.safetensors", {Part("x@6", 6, 4)}, {});
  EXPECT_THROW(Read(0, 10, 10), Error);
  EXPECT_THROW(Read(2, 4, 8), Error);
}

}  // namespace
}  // namespace augur
