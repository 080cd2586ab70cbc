#include "rollout/cpu/moe.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/decode/decode_rows.h"
#include "kernels/simd/rounded_lanes.h"

namespace augur {
namespace {

struct Visit {
  int64_t row;
  float weight;
};

// The experts of one token with their weights, likeliest first; ties fall to the lower index.
template <typename T>
void Route(const MoeConfig& config, const float* logits, int64_t row, const RoutingRecord& record,
           std::vector<std::vector<Visit>>* visits) {
  const float most = *std::max_element(logits, logits + config.experts);
  std::vector<float> probabilities(config.experts);
  float total = 0;
  for (int64_t e = 0; e < config.experts; ++e) total += probabilities[e] = std::exp(logits[e] - most);
  std::vector<int64_t> order(config.experts);
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(
      order.begin(), order.begin() + config.experts_per_token, order.end(), [&](int64_t a, int64_t b) {
        return probabilities[a] != probabilities[b] ? probabilities[a] > probabilities[b] : a < b;
      });
  order.resize(config.experts_per_token);
  if (record.data != nullptr) {
    uint8_t* to = record.data + record.rows[row] * record.stride;
    for (const int64_t e : order) *to++ = static_cast<uint8_t>(e);
  }
  float chosen = 0;
  for (const int64_t e : order) chosen += probabilities[e] /= total;
  for (const int64_t e : order) {
    const float weight = config.norm_topk_prob ? probabilities[e] / chosen : probabilities[e];
    (*visits)[e].push_back({row, Rounded<T>(weight)});
  }
}

}  // namespace

template <typename T>
void RunExperts(const MoeConfig& config, const CpuLayer& layer, int64_t rows, int64_t hidden, const float* x,
                const float* logits, int64_t logits_stride, const RoutingRecord& record, float* out) {
  std::vector<std::vector<Visit>> visits(config.experts);
  for (int64_t r = 0; r < rows; ++r) Route<T>(config, logits + r * logits_stride, r, record, &visits);
  std::fill_n(out, rows * hidden, 0.0f);
  const bool round = std::is_same_v<T, BFloat16>;
  GemmRows operand(layer.expert(kExpertsGateUp, 0).weight.format());
  std::vector<float> values, wide;
  for (int64_t e = 0; e < config.experts; ++e) {
    const CpuLinear &gate_up = layer.expert(kExpertsGateUp, e), &down = layer.expert(kExpertsDown, e);
    const auto count = static_cast<int64_t>(visits[e].size());
    if (count == 0) continue;
    operand.Resize(count, hidden);
    values.resize(std::max(hidden, config.intermediate_size));
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(x + visits[e][i].row * hidden, hidden, values.data());
      operand.SetRow(i, values.data());
    }
    int64_t stride = gate_up.weight.padded_outputs();
    wide.resize(count * stride);
    PackedGemm(operand, gate_up.weight, nullptr, round, wide.data(), stride);
    operand.Resize(count, config.intermediate_size);
    for (int64_t i = 0; i < count; ++i) {
      SwigluRowCpu<T>(config.intermediate_size, wide.data() + i * stride, values.data());
      operand.SetRow(i, values.data());
    }
    stride = down.weight.padded_outputs();
    wide.resize(std::max<size_t>(wide.size(), count * stride));
    PackedGemm(operand, down.weight, nullptr, round, wide.data(), stride);
    for (int64_t i = 0; i < count; ++i) {
      AddWeightedRowCpu<T>(hidden, wide.data() + i * stride, visits[e][i].weight,
                           out + visits[e][i].row * hidden);
    }
  }
}

template void RunExperts<float>(const MoeConfig&, const CpuLayer&, int64_t, int64_t, const float*,
                                const float*, int64_t, const RoutingRecord&, float*);
template void RunExperts<BFloat16>(const MoeConfig&, const CpuLayer&, int64_t, int64_t, const float*,
                                   const float*, int64_t, const RoutingRecord&, float*);

}  // namespace augur
