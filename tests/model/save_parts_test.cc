#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/file.h"
#include "model/load.h"
#include "model/save.h"

namespace augur {
namespace {

namespace fs = std::filesystem;

// Counts what a store would have gathered.
class CountingStore : public LayerStore {
 public:
  void Acquire(size_t part, int64_t next) override {
    if (expected_ >= 0) {
      EXPECT_EQ(static_cast<int64_t>(part), expected_);
    }
    expected_ = next;
    held_.insert(part);
    seen_.insert(part);
    most_ = std::max(most_, held_.size());
  }
  void Release(size_t part) override { held_.erase(part); }
  void TakeGradients(size_t /*layer*/, const std::vector<at::Tensor>& /*gradients*/) override {}

  size_t most() const { return most_; }
  size_t seen() const { return seen_.size(); }
  size_t held() const { return held_.size(); }

 private:
  std::set<size_t> held_, seen_;
  size_t most_ = 0;
  int64_t expected_ = -1;
};

TEST(SaveModel, GathersThePartsOfOneFileAtATime) {
  const Model model = LoadModel(AUGUR_SOURCE_DIR "/models/tiny", at::kFloat, at::kCPU);
  const fs::path root = fs::temp_directory_path() / ("augur-save-parts-" + std::to_string(getpid()));
  constexpr int64_t kSmall = 200'000;
  CountingStore store;
  SaveModel(model, root / "parts", kSmall, &store);
  SaveModel(model, root / "whole", kSmall);
  EXPECT_EQ(store.seen(), HeadPart(model) + 1);
  EXPECT_LT(store.most(), store.seen());
  EXPECT_EQ(store.held(), 0U);
  for (const fs::directory_entry& entry : fs::directory_iterator(root / "whole")) {
    EXPECT_EQ(ReadFile(root / "parts" / entry.path().filename()), ReadFile(entry.path())) << entry.path();
  }
  fs::remove_all(root);
}

}  // namespace
}  // namespace augur
