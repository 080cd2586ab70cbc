// The mixture of experts, for generation on the CPU.
#pragma once

#include <cstdint>

#include "rollout/cpu/weights.h"

namespace augur {

// Where the experts of each row are noted: those of row r at data + rows[r] * stride, one byte each.
struct RoutingRecord {
  uint8_t* data = nullptr;  // null: nowhere
  int64_t stride = 0;
  const int64_t* rows = nullptr;
};

// out [rows, hidden] from the normalised x [rows, hidden]; logits [rows, logits_stride] are the router's.
// Each token's experts are added in order of their index, rounded to T as in the training forward.
template <typename T>
void RunExperts(const MoeConfig& config, const CpuLayer& layer, int64_t rows, int64_t hidden, const float* x,
                const float* logits, int64_t logits_stride, const RoutingRecord& record, float* out);

}  // namespace augur
