// Decode steps on a GPU, captured in graphs by batch size; the inputs and the results of a step each move in
// one copy. For *_cuda.cc files only.
#pragma once

#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAStream.h>

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "rollout/backend.h"
#include "rollout/cuda/forward.h"

namespace augur {

// Runs one step ahead: while the host looks at the tokens of a step, the GPU computes the next one for the
// same sequences, taking their tokens from its own memory. Where the host then asks for these sequences or
// some of them, the results are there already; where it asks for others, they are dropped. What a dropped
// step wrote of keys and values lies behind the end of its sequences.
class CudaDecoder {
 public:
  // `routing_width`: bytes of a token's experts, which are recorded; 0: they are not.
  CudaDecoder(const CudaWeights& weights, const CudaForward& forward, const CudaPages& pages,
              int64_t routing_width);

  // The experts go to `routing` [sequences, routing_width].
  void Decode(std::span<const DecodeSequence> sequences, std::span<const SampleDraw> draws,
              const SampleSettings& settings, const SampleResults& out, uint8_t* routing);

  // Forgets the step that runs ahead, after weights or pages changed.
  void DropAhead() { ahead_.reset(); }
  // Forgets the graphs, too, which hold addresses of weights and pages.
  void DropGraphs();

 private:
  struct Row {
    int32_t token;
    int32_t source;  // the row of the step before whose sampled token it takes; -1: `token`
    int32_t position;
    std::span<const int32_t> pages;  // the caller's, read during the launch alone
    SampleDraw draw;
  };
  // A step that was launched.
  struct Step {
    std::vector<Row> rows;
    std::vector<std::vector<int32_t>> pages;  // of the rows
    SampleSettings settings;
    int64_t bucket = 0;
    int slot = 0;
  };
  struct Key {
    int64_t rows;
    int splits;
    SampleSettings settings;
    bool operator<(const Key& other) const;
  };
  struct Captured {
    at::Tensor attention_workspace, sample_workspace;
    std::unique_ptr<at::cuda::CUDAGraph> graph;  // null where the pass cannot be captured
  };
  // Pinned memory of a step in flight; used again once `done` has passed.
  struct Slot {
    at::Tensor inputs, results;
    at::cuda::CUDAEvent done;
  };

  std::unique_ptr<Step> Launch(std::vector<Row> rows, const SampleSettings& settings);
  void Upload(const Step& step, Slot* slot);
  void Reserve(int64_t rows, int64_t pages, int64_t columns);
  void Grow(int64_t rows, int64_t table_width, int64_t columns);
  Captured& Prepare(const Key& key);
  void Compute(const Key& key, const Captured& captured);
  // The rows of `step` that compute these draws, in order; empty where one is missing.
  static std::vector<int32_t> Match(const Step& step, std::span<const DecodeSequence> sequences,
                                    std::span<const SampleDraw> draws, const SampleSettings& settings);
  // The next step's rows for the same sequences, whose tokens stand in rows `map` of the last one; empty
  // where one of them has no room for another token yet.
  std::vector<Row> NextRows(std::span<const DecodeSequence> sequences, std::span<const SampleDraw> draws,
                            const std::vector<int32_t>& map) const;

  // Of results_, for so many rows and columns.
  int64_t ResultBytes(int64_t rows, int64_t columns) const;

  // Sections of inputs_, in ints.
  int64_t SourceAt() const { return most_rows_; }
  int64_t PositionsAt() const { return 2 * most_rows_; }
  int64_t DrawsAt() const { return 4 * most_rows_; }
  int64_t TableAt() const { return DrawsAt() + most_rows_ * static_cast<int64_t>(sizeof(SampleDraw) / 4); }

  const CudaWeights& weights_;
  const CudaForward& forward_;
  const CudaPages& pages_;
  const int64_t routing_width_;
  int64_t most_rows_ = 0, table_width_ = 0, most_columns_ = 0;
  std::unique_ptr<CudaRows> memory_;
  at::Tensor logits_;   // [most_rows_, vocab] float32
  at::Tensor inputs_;   // int32: tokens, sources, positions, draws, page table
  at::Tensor results_;  // bytes, as SampleBuffer lays them out, and the experts behind them
  Slot slots_[2];
  int next_slot_ = 0;
  // One for all graphs, which then share the libraries' scratch. Of high priority, which the graphs keep: a
  // step is short and waited for, also where it overlaps training.
  c10::cuda::CUDAStream capture_stream_;
  std::map<Key, Captured> graphs_;
  std::unique_ptr<Step> ahead_;
};

}  // namespace augur
