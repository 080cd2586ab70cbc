// Tests that run once under each instruction set, and are skipped where the machine lacks it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "kernels/simd/isa.h"

namespace augur {

inline constexpr Isa kIsas[] = {Isa::kBaseline,   Isa::kAvx2, Isa::kAvx512,
                                Isa::kAvx512Bf16, Isa::kAmx,  Isa::kBfmmla};

class IsaTest : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    const auto& here = MachineIsas();
    if (std::find(here.begin(), here.end(), GetParam()) == here.end()) {
      GTEST_SKIP() << "this machine has no " << IsaName(GetParam());
    }
    SetIsa(GetParam());
  }
  void TearDown() override { SetIsa(before_); }

 private:
  const Isa before_ = CurrentIsa();
};

inline std::string NameOfIsa(const testing::TestParamInfo<Isa>& info) {
  return std::string(IsaName(info.param));
}

}  // namespace augur
