// A counter-based random generator (Philox 4x32-10): the number at (key, counter) is a pure function of both,
// so results depend neither on order of evaluation nor on what else runs. The same code serves CPU and CUDA.
#pragma once

#include <array>
#include <cstdint>

#include "base/host_device.h"

namespace augur {

struct Philox {
  uint32_t word[4];

  // Four random words for a 64-bit key and a 128-bit counter.
  static AUGUR_HOST_DEVICE Philox At(uint64_t key, uint64_t counter_low, uint64_t counter_high) {
    Philox x{{static_cast<uint32_t>(counter_low), static_cast<uint32_t>(counter_low >> 32),
              static_cast<uint32_t>(counter_high), static_cast<uint32_t>(counter_high >> 32)}};
    uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
      const uint64_t p0 = uint64_t{0xD2511F53u} * x.word[0];
      const uint64_t p1 = uint64_t{0xCD9E8D57u} * x.word[2];
      x = {{static_cast<uint32_t>(p1 >> 32) ^ x.word[1] ^ k0, static_cast<uint32_t>(p1),
            static_cast<uint32_t>(p0 >> 32) ^ x.word[3] ^ k1, static_cast<uint32_t>(p0)}};
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    return x;
  }

  // Uniform in the open interval (0, 1), from word i; never 0 or 1, so that its logarithm is finite.
  AUGUR_HOST_DEVICE float Uniform(int i) const {
    return (static_cast<float>(word[i] >> 9) + 0.5f) * (1.0f / 8388608.0f);
  }
};

}  // namespace augur
