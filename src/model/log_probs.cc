#include "model/log_probs.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/logsumexp.h>

#include <algorithm>
#include <vector>

namespace augur {
namespace {

constexpr int64_t kLogitsPerChunk = int64_t{1} << 24;

at::Tensor ChunkLogProbs(const at::Tensor& hidden, const at::Tensor& head, const at::Tensor& targets) {
  const at::Tensor logits = at::linear(hidden, head);  // [rows, vocab]
  if (hidden.scalar_type() == at::kFloat) {
    return logits.gather(1, targets.unsqueeze(1)).squeeze(1) - at::logsumexp(logits, 1);
  }
  const at::Tensor own = (hidden.to(at::kFloat) * head.index_select(0, targets).to(at::kFloat)).sum(1);
  return own - at::logsumexp(logits.to(at::kFloat), 1);
}

}  // namespace

at::Tensor TokenLogProbs(const at::Tensor& hidden, const at::Tensor& head, const at::Tensor& targets) {
  const int64_t rows = hidden.size(0), step = std::max<int64_t>(1, kLogitsPerChunk / head.size(0));
  std::vector<at::Tensor> parts;
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t count = std::min(step, rows - begin);
    parts.push_back(ChunkLogProbs(hidden.narrow(0, begin, count), head, targets.narrow(0, begin, count)));
  }
  return parts.empty() ? hidden.new_empty({0}, at::kFloat) : at::cat(parts);
}

}  // namespace augur
