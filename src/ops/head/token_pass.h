// The steps that policy_loss and the one-pass head share, over all tokens or over a chunk of them: statistics
// of logit rows, decisions, loss terms with their gradient parts, and the gradient of the logits.
#pragma once

#include <string_view>

#include "ops/checks.h"
#include "ops/head/policy_loss.h"

namespace augur {

// Throws Error where the options, or what is recorded for `first` (an argument with one row per token), break
// their contract. With `validate` the recorded values are checked against the vocabulary, too.
void CheckLogitOptions(const LogitOptions& options);
void CheckRecordedTokens(const NamedTensor& first, const RecordedTokens& recorded, const LossTerms& terms,
                         int64_t vocab_size, bool validate);

// Everything known about T tokens, filled step by step. All floats are of one type, float32 or float64.
struct TokenPass {
  // The recorded side.
  at::Tensor support;              // [T, M] int32
  at::Tensor behaviour;            // [T, M]
  at::Tensor advantages, weights;  // [T]
  at::Tensor reference;            // [T] or undefined
  // Of the logits' rows.
  at::Tensor log_sum_exp, entropy;    // [T]
  at::Tensor tail_mass, tail_square;  // [T]
  at::Tensor policy;                  // [T, M] log pi over the support
  // Decisions.
  at::Tensor ratio, divergence, direction, coefficient;  // [T]
  at::Tensor flags;                                      // [T] uint8
  // Loss terms, and the parts of the gradient that RowGradient takes.
  at::Tensor loss, dense, entropy_weight;  // [T]
  at::Tensor sparse;                       // [T, M]; undefined in a loss

  int64_t tokens() const { return support.size(0); }
  // The tokens [begin, begin + count) as views.
  TokenPass Slice(int64_t begin, int64_t count) const;
};

// Room for the statistics of rows with these ids [T, M], in float32 or float64; the rest is left undefined.
TokenPass StartRowStats(const at::Tensor& ids, at::ScalarType type);
// Converts the recorded side and allocates the rest. Missing weights become the mean over supported tokens.
TokenPass StartTokenPass(const RecordedTokens& recorded, at::ScalarType type);

// How rows of logits are read.
struct LogitView {
  at::Tensor logits;   // [T, at least vocab_size], rows side by side, not half on the CPU
  at::Tensor support;  // [T, M] int32, ids within these rows
  int64_t vocab_size = 0;
  double temperature = 1;
  double softcap = 0;
};

// What logits were turned into unnormalised probabilities with; see RowStats.
struct Unnormalised {
  at::Tensor reference;   // [T]
  at::Tensor overflowed;  // [1] int32, 0 before
};

// Fills the statistics. support_logits [T, M] (or undefined) are more precise than those in the rows, which
// may then be overwritten. With `unnormalised` the logits become unnormalised probabilities.
void ComputeRowStats(const LogitView& view, const at::Tensor& support_logits, const TokenPass& pass,
                     const Unnormalised& unnormalised = {});
// Fills decisions, loss terms and gradient parts from the statistics.
void DecideTokens(const LossTerms& terms, int64_t vocab_size, const TokenPass& pass);

struct GradientTarget {
  at::Tensor gradient;           // [rows, width] of the logits' type and layout; may be the logits
  at::Tensor scale;              // scalar, or undefined for 1
  at::Tensor source;             // [rows] int32, or undefined; see RowGradient
  bool precise_support = false;  // take pi at the support from `policy` rather than from the rows
};
void ComputeRowGradient(const LogitView& view, const TokenPass& pass, const GradientTarget& target);
// The same from unnormalised probabilities, in place: target.gradient holds them and is the gradient but for
// the factor [rows] of each row that is returned.
at::Tensor ComputeUnnormalisedGradient(const LogitView& view, const TokenPass& pass,
                                       const Unnormalised& unnormalised, const GradientTarget& target);

// The statistics as a caller gets to see them.
LogProbs LogProbsOf(const TokenPass& pass);
// The sums over all tokens, and everything a caller gets to see.
PolicyLoss FinishTokenPass(const LossTerms& terms, const TokenPass& pass);

}  // namespace augur
