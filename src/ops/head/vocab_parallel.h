// The head with its rows spread over a process group: each rank has the logits of its own part of the
// vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "ops/head/token_pass.h"

namespace augur {

// Which part of the vocabulary this rank holds: [start, start + count). An empty group is one process.
struct VocabShard {
  std::string group;
  int64_t start = 0;
  int64_t count = 0;
};

// The support's ids within the shard, -1 for those of other ranks.
at::Tensor LocalSupport(const at::Tensor& support, const VocabShard& shard);

// Turns the statistics of this rank's logits into those of all, the same on each rank. support_logits [T, M]
// holds this rank's and 0 elsewhere.
void CombineRowStats(const VocabShard& shard, const LogitOptions& options, const at::Tensor& support_logits,
                     const TokenPass& pass);

}  // namespace augur
