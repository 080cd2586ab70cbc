// Log-probs straight from hidden states, through the same logits and the same sweep as the loss.
#pragma once

#include "ops/head/head.h"

namespace augur {

// The statistics that ComputeLinearPolicyLoss decides by, of the logits hidden weight' + bias at each row's
// ids [T, M] (int32 or int64, -1 in unused columns, column 0 used). The same options and rows give the same
// numbers as the loss. Works in chunks, so that [T, V] never exists. Of the options, temperature, vocab_size,
// softcap, chunk and group are read. Where head's tensors require gradients, these flow from `support`,
// `tail_mass` and `entropy`, and the backward makes the logits again, in the same chunks.
//
// `inert` [T] (or undefined) are the loss's InertTokens, which it puts into chunks of their own. A GEMM of
// another shape may round another way: with the same `inert` the products are the loss's, bit for bit.
LogProbs ComputeLogProbs(const Head& head, const at::Tensor& ids, const HeadOptions& options,
                         const at::Tensor& inert = {});

}  // namespace augur
