// Which instructions the CPU kernels of generation run on: the largest set this machine has, or the one that
// the environment's AUGUR_CPU names, so that all can be tested on a machine that has the largest.
#pragma once

#include <string_view>
#include <vector>

namespace augur {

// In rising order on each architecture.
enum class Isa {
  kBaseline,    // what every machine of the architecture has
  kAvx2,        // with fused multiply-adds
  kAvx512,      // F, BW, DQ and VL
  kAvx512Bf16,  // and products of bfloat16 pairs
  kAmx,         // and matrix tiles of bfloat16
  kBfmmla,      // ARM's bf16 extension
};

std::string_view IsaName(Isa isa);

// Those this machine runs, in rising order.
const std::vector<Isa>& MachineIsas();

// Throws where AUGUR_CPU names none of MachineIsas().
Isa CurrentIsa();
Isa IsaNamed(std::string_view name);

// For tests. Packed weights, rows and pages of keys and values belong to the set they were made under.
void SetIsa(Isa isa);

}  // namespace augur
