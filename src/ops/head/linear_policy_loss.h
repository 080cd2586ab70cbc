// The policy loss straight from hidden states: log-probs, decisions and both gradients of the LM head in one
// pass over chunks of tokens, without ever holding the logits of more than one chunk.
//
// Per chunk: logits Z = H W'; one sweep gives the row statistics and turns Z into unnormalised probabilities,
// of which the gradient dZ is a multiple but at the support; decide; dW += dZ' H and dH = dZ W, rows without
// a gradient left out. That is one GEMM and, for the live rows, two more; backward only scales. With softcap,
// an entropy bonus, half or a spread vocabulary the gradient takes a sweep of its own. Tokens that can have
// no gradient are put into chunks of their own.
#pragma once

#include "ops/head/head.h"

namespace augur {

// The masked policy loss on the logits hidden weight' + bias; its gradient reaches hidden, weight and bias,
// whichever require one. The K+1 support logits are dot products of their own, accumulated in float32.
PolicyLoss ComputeLinearPolicyLoss(const LossTerms& terms, const Head& head, const RecordedTokens& recorded,
                                   const HeadOptions& options);

}  // namespace augur
