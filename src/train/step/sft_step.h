// Supervised fine-tuning's gradient: the cross-entropy of given responses.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "model/forward.h"
#include "train/step/optimizer.h"

namespace augur {

struct SftExample {
  std::vector<int32_t> prompt, response;
};

struct SftSums {
  double loss = 0;  // mean negative log-prob of the response tokens
  int64_t tokens = 0, packed_tokens = 0;
};

// Adds the gradient of the mean over all response tokens of the batch to the optimizer's, whatever the
// micro-batches. The logits of one chunk exist at a time. `progress` is told the tokens read so far, and all
// there are to read.
SftSums AccumulateSft(const Model& model, Optimizer& optimizer, std::span<const SftExample> examples,
                      int64_t micro_tokens, const ForwardOptions& forward,
                      const std::function<void(int64_t done, int64_t total)>& progress = {});

}  // namespace augur
