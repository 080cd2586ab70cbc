// What the files that use BFMMLA share; on ARM alone.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#define AUGUR_BF16_TARGET __attribute__((target("arch=armv8.2-a+bf16")))

namespace augur {

AUGUR_BF16_TARGET inline bfloat16x8_t LoadEight(const uint16_t* from) {
  return vld1q_bf16(reinterpret_cast<const bfloat16_t*>(from));
}

}  // namespace augur
