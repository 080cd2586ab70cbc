// Rows of tokens through a decoder's layers on the CPU, keys and values in pages. Every row takes the same
// path whatever the others are, so its result does not depend on them, bit for bit.
#pragma once

#include <span>
#include <vector>

#include "rollout/cpu/kv_cache.h"
#include "rollout/cpu/step_threads.h"
#include "rollout/cpu/weights.h"
#include "rollout/part_timer.h"

namespace augur {

struct TokenRow {
  int32_t token;
  PagedToken place;
};

// Cosines and sines of positions, [length, head_dim / 2].
struct Rotations {
  std::vector<float> cos, sin;
};

// The buffers of one run at a time. T, float or BFloat16, is what activations are rounded to and what keys
// and values are kept in.
template <typename T>
class CpuForward {
 public:
  // `threads` says how many take part; `parts`, where given, is told where the parts of a run end. Both
  // outlive it.
  CpuForward(const ModelConfig& config, RolloutPrecision precision, KvPrecision kv_precision,
             StepThreads* threads, PartTimer* parts);

  // Runs the rows; those of one sequence stand in order, what precedes them has been run. Returns the hidden
  // states of the `wanted` ones, in rising order, [wanted, hidden], after the last norm, good until the next
  // call. The experts of the rows go to `routing` where that is not null, [rows, sparse layers,
  // experts_per_token].
  float* Run(const CpuWeights& weights, const Rotations& rotations, const CpuKvCache<T>& cache,
             std::span<const TokenRow> rows, std::span<const int64_t> wanted, uint8_t* routing = nullptr);

 private:
  // Writes the keys and values of all rows, rotated unless `rotations` is null, then goes on with `kept`, in
  // rising order, which from there on are the rows.
  void Attention(const CpuLayer& layer, const Rotations* rotations, const PagedShape& shape,
                 const KvPages<T>& kv, std::span<const TokenRow> rows, std::span<const int64_t> kept);
  // From operand_ to inner_.
  void DenseMlp(const CpuLayer& layer, int64_t rows);
  // x += added where there is something to add, then its norm, or itself where the weight is empty, into
  // normal_ and, where `to` is given, its rows.
  void AddNorm(const std::vector<float>& weight, const float* added, int64_t added_stride, int64_t rows,
               GemmRows* to);
  // narrow_ = its norm, unless the weight is empty.
  void NormOutput(const std::vector<float>& weight, int64_t rows, int64_t stride);
  void Multiply(const GemmRows& rows, const CpuLinear& linear, std::vector<float>* out, int64_t* stride);

  const ModelConfig config_;
  StepThreads& threads_;
  const bool kv_fp8_;
  PartTimer* const parts_;
  GemmRows operand_, inner_, router_operand_;
  std::vector<float> x_, normal_, wide_, narrow_, attended_;
  std::vector<PagedToken> places_;
  std::vector<int64_t> all_;         // 0, 1, ...
  std::vector<float> ones_, zeros_;  // cosines and sines of no rotation
};

}  // namespace augur
