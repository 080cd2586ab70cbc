#include "base/error.h"
#include "ops/layer/attention_cudnn.h"

namespace augur {
namespace {

[[noreturn]] void Refuse() {
  throw Error("cuDNN attention", "this build has no cuDNN",
              "install nvidia-cudnn-frontend and configure the build again");
}

}  // namespace

bool CudnnAttentionPays(const AttentionHeads&, const SequenceLayout&) { return false; }

std::pair<at::Tensor, at::Tensor> CudnnAttentionForward(const AttentionHeads&, const SequenceLayout&) {
  Refuse();
}

AttentionHeads CudnnAttentionBackward(const at::Tensor&, const AttentionHeads&, const at::Tensor&,
                                      const at::Tensor&, const SequenceLayout&) {
  Refuse();
}

}  // namespace augur
