// What each of several processes of a machine may take of it.
#include <gtest/gtest.h>

#include "base/cores.h"
#include "base/memory.h"
#include "base/process_group.h"

namespace augur {
namespace {

class MachineShare : public testing::Test {
 protected:
  void SetUp() override {
    ProcessGroup many;
    many.local_size = 1 << 20;
    SetProcessGroup(many);
  }
  void TearDown() override { SetProcessGroup({}); }
};

TEST_F(MachineShare, HasAtLeastOneCore) { EXPECT_EQ(CoresPerProcess(), 1); }

TEST_F(MachineShare, HasItsPartOfTheMemory) { EXPECT_LE(AvailableMemoryPerProcess(), MostMemory() >> 20); }

}  // namespace
}  // namespace augur
