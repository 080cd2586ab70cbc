// CRC-32C (Castagnoli), as TensorFlow's record files and many checksums of storage use it.
#pragma once

#include <cstdint>
#include <string_view>

namespace augur {

// The checksum of `bytes` continuing from that of what came before (0 at the beginning).
uint32_t Crc32c(std::string_view bytes, uint32_t before = 0);

}  // namespace augur
