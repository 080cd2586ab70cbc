// Random matrices as memory holds them, in bfloat16 or in e4m3 with a scale for each row, for tests of
// products.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/device.h"
#include "kernels/simd/element.h"

namespace augur {

// The value of an e4m3 byte.
inline float FromE4m3(uint8_t bits) {
  const int exponent = bits >> 3 & 15, fraction = bits & 7;
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                                        : std::ldexp(1 + fraction / 8.0f, exponent - 7);
  return bits & 128 ? -magnitude : magnitude;
}

// A matrix as memory holds it, with a scale for each row in e4m3.
struct StoredMatrix {
  StoredMatrix(int64_t rows, int64_t columns, bool fp8, std::mt19937& random) : width(columns) {
    std::normal_distribution<float> normal;
    const int64_t count = rows * columns;
    for (int64_t i = 0; i < count; ++i) {
      if (fp8) {
        auto bits = static_cast<uint8_t>(random() % 256);
        if ((bits & 127) > 0x50) bits = static_cast<uint8_t>(bits & 0x8f);  // up to 16, and no NaN
        bytes.push_back(bits);
      } else {
        halves.push_back(BFloat16::From(normal(random)));
      }
    }
    for (int64_t r = 0; fp8 && r < rows; ++r)
      scale.push_back(0.1f + 0.01f * static_cast<float>(random() % 50));
  }
  double At(int64_t row, int64_t column) const {
    if (bytes.empty()) return halves[row * width + column];
    return static_cast<double>(FromE4m3(bytes[row * width + column])) * scale[row];
  }
  int64_t width;
  std::vector<BFloat16> halves;
  std::vector<uint8_t> bytes;
  std::vector<float> scale;
};

struct MatrixOnGpu {
  explicit MatrixOnGpu(const StoredMatrix& m)
      : halves(Device::kCuda, m.halves),
        bytes(Device::kCuda, m.bytes),
        scale(Device::kCuda, m.scale),
        fp8(!m.bytes.empty()) {}
  const void* data() { return fp8 ? static_cast<const void*>(bytes.data()) : halves.data(); }
  const float* scales() { return fp8 ? scale.data() : nullptr; }
  DeviceArray<BFloat16> halves;
  DeviceArray<uint8_t> bytes;
  DeviceArray<float> scale;
  bool fp8;
};

}  // namespace augur
