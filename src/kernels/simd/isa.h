// Which instructions the CPU kernels of generation run on: the largest set this machine has, or a smaller
// one.
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

Isa CurrentIsa();
// Packed weights, rows and pages of keys and values belong to the set they were made under.
void SetIsa(Isa isa);

// What the environment's AUGUR_CPU names, so that all can be tried on a machine that has the largest; without
// it the largest. Throws where that is none of MachineIsas().
Isa IsaOfEnvironment();

}  // namespace augur
