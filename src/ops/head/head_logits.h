// From hidden states to log-probs, chunk by chunk: the one place where the head's logits are made and read.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "ops/head/head.h"
#include "ops/head/token_pass.h"
#include "ops/head/vocab_parallel.h"

namespace augur {

// Throws Error where head and options do not fit each other. Returns the size of the whole vocabulary.
int64_t CheckHead(const Head& head, const HeadOptions& options);

// Dense, detached and of a type that the device's kernels read: half has none on the CPU.
Head ReadableHead(const Head& head);

// Tokens without a gradient whatever the policy decides: of no weight, without record, or, where nothing else
// is asked of them, without advantage. [T] bool.
at::Tensor InertTokens(const RecordedTokens& recorded, const LossTerms& terms);

// The order in which rows are worked through: inert tokens last, so that chunks are of one kind.
struct RowOrder {
  RowOrder() = default;
  RowOrder(const at::Tensor& inert, int64_t tokens);

  at::Tensor order;  // [T] int64; undefined where all keep their places
  int64_t tokens = 0;
  int64_t active = 0;  // how many are not inert

  int64_t inert() const { return tokens - active; }

  at::Tensor Sorted(const at::Tensor& x) const;
  at::Tensor Restored(const at::Tensor& x) const;
};

// Neighbours in a RowOrder, active or inert all of them.
struct HeadChunk {
  int64_t begin = 0, rows = 0;  // its place in the order
  bool inert = false;
  at::Tensor hidden;  // [rows, d]
  at::Tensor tokens;  // [rows] int64, which of the batch these are; undefined for all from `begin` on
};

class HeadLogits {
 public:
  // `head` is readable; both arguments must outlive this object.
  HeadLogits(const Head& head, const HeadOptions& options, int64_t vocab_size);

  bool parallel() const { return !shard_.group.empty(); }
  const VocabShard& shard() const { return shard_; }
  // [held, d]: the weight's rows without padding, as products take them (ops/layer/product.h).
  const at::Tensor& factor() const { return factor_; }
  // The support's ids among these rows; -1 for those of other ranks.
  at::Tensor LocalIds(const at::Tensor& support) const;

  // How many chunks this many tokens of one kind make.
  int64_t Chunks(int64_t tokens) const;
  // Calls `work` with one chunk after the other, those of active rows first, and CheckStop before each. Equal
  // orders are divided into equal chunks, so that products of the same rows have the same shapes in every
  // walk. Room for the logits of a chunk is held meanwhile; throws MemoryError where a GPU's memory does not
  // hold them next to what `work` needs.
  void ForEachChunk(const RowOrder& order, const std::function<void(const HeadChunk&)>& work);

  // Within ForEachChunk: the logits of a chunk [rows, d]; the next chunk overwrites them.
  LogitView Logits(const at::Tensor& hidden, const at::Tensor& local_ids);
  // The same with the row statistics in `pass`, of all ranks where there are several. The support's logits
  // are dot products of their own, accumulated in float32. With `unnormalised` the logits become unnormalised
  // probabilities.
  LogitView Stats(const at::Tensor& hidden, const at::Tensor& local_ids, const TokenPass& pass,
                  const Unnormalised& unnormalised = {});

 private:
  // Chunks of `tokens` tokens have this many, of nearly equal size, so that their logits fit the budget. The
  // same on all ranks of a group, whatever part of the vocabulary each holds: each chunk has its collectives.
  int64_t ChunkRows(int64_t tokens) const;
  HeadChunk ChunkAt(const RowOrder& order, int64_t begin, int64_t rows) const;
  at::Tensor SupportLogits(const at::Tensor& hidden, const at::Tensor& local_ids, at::ScalarType type) const;

  const Head& head_;
  const HeadOptions& options_;
  VocabShard shard_;
  int64_t row_elements_;      // logits of a token on a rank of even shards
  at::Tensor weight_, bias_;  // without padding
  at::Tensor factor_;         // the weight as products take it
  at::Tensor buffer_;         // [rows, at least held], in ForEachChunk alone
};

}  // namespace augur
