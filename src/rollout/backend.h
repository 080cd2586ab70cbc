// What the engine asks of a device. Scheduling, stopping and results are the engine's; weights, keys and
// values, and sampling are the backend's, so that logits never leave the device.
//
// Keys and values live in pages of page_tokens() positions. The engine owns the bookkeeping: it hands out
// page numbers, shares the pages of a prompt among its samples, and lists each sequence's pages in order of
// position; the backend reads and writes where it is told.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/decode/sample_support.h"
#include "model/model.h"
#include "rollout/engine.h"

namespace augur {

// A sequence to run from position 0. Its keys and values go to positions 0 .. tokens.size() - 1 of its pages.
struct PrefillSequence {
  std::span<const int32_t> tokens;
  std::span<const int32_t> pages;  // at least as many as the tokens fill
  int64_t known_pages = 0;  // the first ones, which hold their keys and values already and are not written
};

// One more token of a sequence. Its keys and values go to `position`; it attends to 0 .. position.
struct DecodeSequence {
  int32_t token;
  int32_t position;
  std::span<const int32_t> pages;  // at least as many as position + 1 tokens fill
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual int64_t page_tokens() const = 0;
  virtual int64_t page_bytes() const = 0;  // keys and values of one page, over all layers
  // Bytes free for keys and values now, in addition to those already reserved.
  virtual int64_t FreeBytes() const = 0;

  // Makes room for `pages` pages (numbers 0 .. pages - 1) where there is less; contents may be lost. 0 gives
  // all memory back.
  virtual void ReservePages(int64_t pages) = 0;
  // Copies whole pages, (from, to).
  virtual void CopyPages(std::span<const std::pair<int32_t, int32_t>> copies) = 0;

  // Runs sequences and draws from the logits of their last tokens: draw.row is the index of the sequence; a
  // sequence may have any number of draws, and draws ascend by row. `out` has room for one result per draw.
  virtual void Prefill(std::span<const PrefillSequence> sequences, std::span<const SampleDraw> draws,
                       const SampleSettings& settings, const SampleResults& out) = 0;
  // Runs one token of each sequence and draws; draw i has row i.
  virtual void Decode(std::span<const DecodeSequence> sequences, std::span<const SampleDraw> draws,
                      const SampleSettings& settings, const SampleResults& out) = 0;

  // That took part at the end of the last step; fewer than there are next to busy processes. 0 on a GPU.
  virtual int threads() const { return 0; }

  // With record_routing, the experts of the tokens of the last Decode, or of the last Prefill of sequences
  // without known pages, sequence by sequence: [tokens, sparse layers, experts_per_token]. Otherwise empty.
  virtual std::span<const uint8_t> routing() const { return {}; }

  // Takes over the model's current weights.
  virtual void UpdateWeights(const Model& model) = 0;
  // Gives the memory of those that are not shared with the model back until the next UpdateWeights.
  virtual void ReleaseWeights() = 0;
  virtual int64_t weight_bytes() const = 0;  // of those
};

std::unique_ptr<Backend> MakeCpuBackend(const Model& model, const EngineOptions& options);
// Says so where CUDA is not compiled in.
std::unique_ptr<Backend> MakeCudaBackend(const Model& model, const EngineOptions& options);

}  // namespace augur
