#include <gtest/gtest.h>

#include "kernels/device.h"
#include "kernels/layer/zero_groups.h"

namespace augur {
namespace {

TEST(ZeroGroupsCuda, MatricesOfGroupsWithoutRowsBecomeZerosAndNoOthers) {
  constexpr int64_t kSize = 8 * 40;
  const std::vector<int32_t> ends = {0, 3, 3, 3, 7, 7};
  DeviceArray<int32_t> there(Device::kCuda, ends);
  DeviceArray<float> matrices(Device::kCuda, std::vector<float>(ends.size() * kSize, NAN));
  ZeroEmptyGroupsCuda(static_cast<int64_t>(ends.size()), kSize * 4, there.data(), matrices.data(), nullptr);
  const std::vector<float> found = matrices.ToHost();
  for (size_t group = 0; group < ends.size(); ++group) {
    const bool has_rows = group == 1 || group == 4;
    for (int64_t i = 0; i < kSize; ++i) {
      const float value = found[group * kSize + i];
      ASSERT_TRUE(has_rows ? std::isnan(value) : value == 0) << "group " << group << ", element " << i;
    }
  }
}

}  // namespace
}  // namespace augur
