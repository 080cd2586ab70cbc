// A fast checksum against damage, not against malice: XXH64 with seed 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace augur {

uint64_t Checksum(std::span<const std::byte> bytes);

}  // namespace augur
