// Compiled with -ffp-contract=off (CMakeLists.txt): a fused multiply-add would round once where gguf rounds
// twice.
#include "formats/dequantize.h"

#include <array>
#include <cstring>
#include <stdexcept>

#include "formats/float16.h"

namespace augur {
namespace {

using Block = const uint8_t*;

float HalfAt(Block p) { return HalfToFloat(static_cast<uint16_t>(p[0] | p[1] << 8)); }

void DequantizeF32(Block block, float* out) { std::memcpy(out, block, 4); }
void DequantizeF16(Block block, float* out) { *out = HalfAt(block); }
void DequantizeBF16(Block block, float* out) {
  *out = Bfloat16ToFloat(static_cast<uint16_t>(block[0] | block[1] << 8));
}

// In the types of 32 values, byte i holds the low bits of value i in its low half and of value i + 16 above.

void DequantizeQ4_0(Block block, float* out) {
  const float scale = HalfAt(block);
  for (int i = 0; i < 16; ++i) {
    const int q = block[2 + i];
    out[i] = scale * static_cast<float>((q & 15) - 8);
    out[i + 16] = scale * static_cast<float>((q >> 4) - 8);
  }
}

void DequantizeQ4_1(Block block, float* out) {
  const float scale = HalfAt(block), minimum = HalfAt(block + 2);
  for (int i = 0; i < 16; ++i) {
    const int q = block[4 + i];
    out[i] = scale * static_cast<float>(q & 15) + minimum;
    out[i + 16] = scale * static_cast<float>(q >> 4) + minimum;
  }
}

// The fifth bit of value i is bit i of a little-endian word.
uint32_t FifthBits(Block p) {
  uint32_t bits;
  std::memcpy(&bits, p, 4);
  return bits;
}

void DequantizeQ5_0(Block block, float* out) {
  const float scale = HalfAt(block);
  const uint32_t high = FifthBits(block + 2);
  for (int i = 0; i < 16; ++i) {
    const int q = block[6 + i];
    out[i] = scale * static_cast<float>(((q & 15) | static_cast<int>((high >> i) & 1) << 4) - 16);
    out[i + 16] = scale * static_cast<float>(((q >> 4) | static_cast<int>((high >> (i + 16)) & 1) << 4) - 16);
  }
}

void DequantizeQ5_1(Block block, float* out) {
  const float scale = HalfAt(block), minimum = HalfAt(block + 2);
  const uint32_t high = FifthBits(block + 4);
  for (int i = 0; i < 16; ++i) {
    const int q = block[8 + i];
    out[i] = scale * static_cast<float>((q & 15) | static_cast<int>((high >> i) & 1) << 4) + minimum;
    out[i + 16] =
        scale * static_cast<float>((q >> 4) | static_cast<int>((high >> (i + 16)) & 1) << 4) + minimum;
  }
}

void DequantizeQ8_0(Block block, float* out) {
  const float scale = HalfAt(block);
  for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(static_cast<int8_t>(block[2 + i])) * scale;
}

// Q4_K and Q5_K: eight groups of 32 values, each with a 6-bit scale and a 6-bit minimum packed into 12 bytes.
struct Group {
  float scale, minimum;
};

std::array<Group, 8> UnpackGroups(Block block) {
  const float scale = HalfAt(block), minimum = HalfAt(block + 2);
  Block p = block + 4;
  std::array<Group, 8> groups;
  for (int i = 0; i < 4; ++i) {
    groups[i] = {scale * static_cast<float>(p[i] & 0x3F), minimum * static_cast<float>(p[i + 4] & 0x3F)};
    groups[i + 4] = {scale * static_cast<float>((p[i + 8] & 0x0F) | ((p[i] >> 2) & 0x30)),
                     minimum * static_cast<float>((p[i + 8] >> 4) | ((p[i + 4] >> 2) & 0x30))};
  }
  return groups;
}

// Group 2j takes the low halves of the j-th 32 bytes, group 2j+1 the high ones.
void DequantizeQ4_K(Block block, float* out) {
  const auto groups = UnpackGroups(block);
  for (int g = 0; g < 8; ++g) {
    Block q = block + 16 + g / 2 * 32;
    const int shift = g % 2 * 4;
    for (int i = 0; i < 32; ++i) {
      out[g * 32 + i] = groups[g].scale * static_cast<float>((q[i] >> shift) & 15) - groups[g].minimum;
    }
  }
}

// The fifth bit of value i of group g is bit g of byte i.
void DequantizeQ5_K(Block block, float* out) {
  const auto groups = UnpackGroups(block);
  Block high = block + 16;
  for (int g = 0; g < 8; ++g) {
    Block q = block + 48 + g / 2 * 32;
    const int shift = g % 2 * 4;
    for (int i = 0; i < 32; ++i) {
      const int value = ((q[i] >> shift) & 15) | ((high[i] >> g) & 1) << 4;
      out[g * 32 + i] = groups[g].scale * static_cast<float>(value) - groups[g].minimum;
    }
  }
}

// Two halves of 128 values; in each, 64 bytes of low bits hold rows 0, 1 (low) and 2, 3 (high) of 32 values,
// and 32 bytes hold two more bits of each row. One signed scale serves 16 values.
void DequantizeQ6_K(Block block, float* out) {
  const float scale = HalfAt(block + 208);
  for (int half = 0; half < 2; ++half) {
    Block low = block + half * 64, high = block + 128 + half * 32, scales = block + 192 + half * 8;
    for (int row = 0; row < 4; ++row) {
      for (int i = 0; i < 32; ++i) {
        const int bits = (low[row % 2 * 32 + i] >> (row / 2 * 4)) & 15;
        const int q = (bits | ((high[i] >> (2 * row)) & 3) << 4) - 32;
        const float group = scale * static_cast<float>(static_cast<int8_t>(scales[row * 2 + i / 16]));
        out[half * 128 + row * 32 + i] = group * static_cast<float>(q);
      }
    }
  }
}

using BlockFunction = void (*)(Block, float*);

BlockFunction FunctionOf(GgmlType type) {
  switch (type) {
    case GgmlType::kF32:
      return DequantizeF32;
    case GgmlType::kF16:
      return DequantizeF16;
    case GgmlType::kBF16:
      return DequantizeBF16;
    case GgmlType::kQ4_0:
      return DequantizeQ4_0;
    case GgmlType::kQ4_1:
      return DequantizeQ4_1;
    case GgmlType::kQ5_0:
      return DequantizeQ5_0;
    case GgmlType::kQ5_1:
      return DequantizeQ5_1;
    case GgmlType::kQ8_0:
      return DequantizeQ8_0;
    case GgmlType::kQ4_K:
      return DequantizeQ4_K;
    case GgmlType::kQ5_K:
      return DequantizeQ5_K;
    case GgmlType::kQ6_K:
      return DequantizeQ6_K;
  }
  throw std::logic_error("unknown GGML type");
}

}  // namespace

void Dequantize(GgmlType type, std::span<const std::byte> blocks, std::span<float> out) {
  const GgmlTypeInfo& info = InfoOf(type);
  const size_t count = blocks.size() / info.block_bytes;
  if (count * info.block_bytes != blocks.size() || count * info.block_values != out.size()) {
    throw std::logic_error("Dequantize: sizes of blocks and values do not match");
  }
  const auto* bytes = reinterpret_cast<const uint8_t*>(blocks.data());
  const BlockFunction function = FunctionOf(type);
  for (size_t i = 0; i < count; ++i)
    function(bytes + i * info.block_bytes, out.data() + i * info.block_values);
}

}  // namespace augur
