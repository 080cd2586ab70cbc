#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/head/decide.h"
#include "kernels/head/decide_math.h"
#include "kernels/simd/vector_math.h"
#include "mask/divergences.h"

namespace augur {

template <>
struct Arithmetic<Floats> {
  using Mask = Ints;
  using Flags = Ints;
  static Floats Splat(double x) { return Floats{} + static_cast<float>(x); }
  static Ints Bit(Ints mask, uint8_t bit) { return mask & bit; }
  static Floats Exp(Floats x) { return VectorExp(x); }
  static Floats Log(Floats x) { return VectorLog(x); }
  static Floats Sqrt(Floats x) {
    return Floats{std::sqrt(x[0]), std::sqrt(x[1]), std::sqrt(x[2]), std::sqrt(x[3])};
  }
  static Floats Abs(Floats x) { return (Floats)((Ints)x & 0x7fffffff); }
};

namespace {

constexpr float kUnused = -std::numeric_limits<float>::infinity();
// Below this exponentials count for nothing; an unused column's log-probs.
constexpr float kVanishing = -87;
// Logarithms count for longer, times the other policy's probability; lower ones are decided in double.
constexpr float kLowest = -1e4;

// Four rows of a batch; the last ones repeat where the batch ends.
struct FourRows {
  FourRows(const DecideInput<float>& in, int64_t first)
      : count(std::min<int64_t>(kFloats, in.tokens - first)) {
    for (int i = 0; i < kFloats; ++i) token[i] = first + std::min<int64_t>(i, count - 1);
  }

  int64_t count;
  int64_t token[kFloats];

  // One value of each row from a per-token array.
  Floats Gather(const float* values) const {
    return Floats{values[token[0]], values[token[1]], values[token[2]], values[token[3]]};
  }
};

// One matrix of the batch seen through four of its rows.
class FourRowView {
 public:
  FourRowView(const float* matrix, int columns, const FourRows& rows) {
    for (int i = 0; i < kFloats; ++i) row_[i] = matrix + rows.token[i] * columns;
  }

  // Columns c to c + 3, turned so that out[k] holds column c + k of the four rows.
  void LoadTransposed(int c, Floats out[kFloats]) const {
    Floats row[kFloats];
    for (int i = 0; i < kFloats; ++i) __builtin_memcpy(&row[i], row_[i] + c, sizeof(Floats));
    const Floats a = __builtin_shuffle(row[0], row[1], Ints{0, 4, 2, 6});
    const Floats b = __builtin_shuffle(row[0], row[1], Ints{1, 5, 3, 7});
    const Floats d = __builtin_shuffle(row[2], row[3], Ints{0, 4, 2, 6});
    const Floats e = __builtin_shuffle(row[2], row[3], Ints{1, 5, 3, 7});
    out[0] = __builtin_shuffle(a, d, Ints{0, 1, 4, 5});
    out[1] = __builtin_shuffle(b, e, Ints{0, 1, 4, 5});
    out[2] = __builtin_shuffle(a, d, Ints{2, 3, 6, 7});
    out[3] = __builtin_shuffle(b, e, Ints{2, 3, 6, 7});
  }

  Floats LoadColumn(int c) const { return Floats{row_[0][c], row_[1][c], row_[2][c], row_[3][c]}; }

 private:
  const float* row_[kFloats];
};

// exp of a log-prob, from -87 to a little above 0: one step of argument reduction instead of two, since an
// error that grows with -x is lost against e^x. The absolute error stays below 2e-7.
Floats ProbabilityOf(Floats x) {
  constexpr float kRound = 0x1.8p23f + 127;
  const Floats shifted = x * 1.44269504f + kRound;
  const Floats r = x - (shifted - kRound) * 0.693147181f;
  const Floats r2 = r * r;
  const Floats low = 4.9999230315e-1f + r * 1.6667115384e-1f;
  const Floats high = 4.1890330992e-2f + r * 8.3125017013e-3f;
  return ((1.0f + r) + r2 * (low + r2 * high)) * (Floats)((Ints)shifted << 23);
}

// Sums of four rows, one in each lane.
template <typename D>
class RowSums {
 public:
  // Column 0.
  void AddSampled(Floats behaviour, Floats policy) {
    Add(behaviour, policy);
    sampled_ = {behaviour, policy, sums_.mu, sums_.pi};
  }

  void Add(Floats behaviour, Floats policy) {
    const Ints unused = behaviour == kUnused;
    const Floats vanishing = Floats{} + kVanishing;
    const Floats log_mu = unused ? vanishing : AtLeast(behaviour, kLowest);
    const Floats log_pi = unused ? vanishing : AtLeast(policy, kLowest);
    const Floats mu = ProbabilityOf(AtLeast(log_mu, kVanishing));
    const Floats pi = ProbabilityOf(AtLeast(log_pi, kVanishing));
    columns_ += 1;
    unused_ += unused;  // true is -1
    sums_.Add({log_mu, log_pi, mu, pi});
  }

  SupportSums<D, Floats> sums() const {
    SupportSums<D, Floats> all = sums_;
    all.count = __builtin_convertvector(unused_ + columns_, Floats);
    return all;
  }
  const Atom<Floats>& sampled() const { return sampled_; }

 private:
  SupportSums<D, Floats> sums_;
  Atom<Floats> sampled_{};
  Ints unused_{};
  int32_t columns_ = 0;
};

template <typename D>
RowSums<D> SumRows(const DecideInput<float>& in, const FourRows& rows) {
  const FourRowView behaviour(in.behaviour, in.columns, rows), policy(in.policy, in.columns, rows);
  RowSums<D> sums;
  sums.AddSampled(behaviour.LoadColumn(0), policy.LoadColumn(0));
  int c = 1;
  for (; c + kFloats <= in.columns; c += kFloats) {
    Floats log_mu[kFloats], log_pi[kFloats];
    behaviour.LoadTransposed(c, log_mu);
    policy.LoadTransposed(c, log_pi);
#pragma GCC unroll 4
    for (int k = 0; k < kFloats; ++k) sums.Add(log_mu[k], log_pi[k]);
  }
  for (; c < in.columns; ++c) sums.Add(behaviour.LoadColumn(c), policy.LoadColumn(c));
  return sums;
}

TokenFacts<Floats> FactsOfRows(const DecideInput<float>& in, const FourRows& rows) {
  TokenFacts<Floats> facts;
  facts.advantage = rows.Gather(in.advantage);
  facts.vocab_size = Floats{} + static_cast<float>(in.vocab_size);
  if (in.tail_square) facts.tail_square = rows.Gather(in.tail_square);
  if (in.tail_cube) facts.tail_cube = rows.Gather(in.tail_cube);
  facts.has_policy_tail = in.policy_tail != nullptr;
  if (in.policy_tail) facts.policy_tail = rows.Gather(in.policy_tail);
  return facts;
}

template <typename R, typename T>
void Write(const Decided<R>& decided, int64_t t, const DecideOutput<T>& out) {
  out.ratio[t] = static_cast<T>(decided.ratio);
  out.divergence[t] = static_cast<T>(decided.divergence);
  out.direction[t] = static_cast<T>(decided.direction);
  if (out.coefficient) out.coefficient[t] = static_cast<T>(decided.coefficient);
  out.flags[t] = decided.flags;
}

template <typename D>
void DecideFour(const MaskRule& rule, const DecideInput<float>& in, const DecideOutput<float>& out,
                int64_t first) {
  const FourRows rows(in, first);
  const RowSums<D> sums = SumRows<D>(in, rows);
  const Decided<Floats> fast = DecideToken<D>(rule, sums.sums(), sums.sampled(), FactsOfRows(in, rows));
  const Ints special = fast.delicate | (sums.sampled().log_mu == kUnused);
  if (rows.count == kFloats && (special[0] | special[1] | special[2] | special[3]) == 0) {
    __builtin_memcpy(out.ratio + first, &fast.ratio, sizeof(Floats));
    __builtin_memcpy(out.divergence + first, &fast.divergence, sizeof(Floats));
    __builtin_memcpy(out.direction + first, &fast.direction, sizeof(Floats));
    if (out.coefficient) __builtin_memcpy(out.coefficient + first, &fast.coefficient, sizeof(Floats));
    for (int i = 0; i < kFloats; ++i) out.flags[first + i] = static_cast<uint8_t>(fast.flags[i]);
    return;
  }
  for (int i = 0; i < rows.count; ++i) {
    const int64_t t = first + i;
    if (sums.sampled().log_mu[i] == kUnused) {
      Write(Decided<float>(), t, out);
    } else if (fast.delicate[i]) {
      Write(DecideTokenInDouble<D>(rule, in, t), t, out);
    } else {
      out.ratio[t] = fast.ratio[i];
      out.divergence[t] = fast.divergence[i];
      out.direction[t] = fast.direction[i];
      if (out.coefficient) out.coefficient[t] = fast.coefficient[i];
      out.flags[t] = static_cast<uint8_t>(fast.flags[i]);
    }
  }
}

template <typename D>
void DecideFour(const MaskRule& rule, const DecideInput<double>& in, const DecideOutput<double>& out,
                int64_t first) {
  for (int64_t t = first; t < std::min(first + kFloats, in.tokens); ++t) {
    const bool missing = in.behaviour[t * in.columns] == static_cast<double>(kUnused);
    Write(missing ? Decided<double>() : DecideTokenInDouble<D>(rule, in, t), t, out);
  }
}

template <typename D, typename T>
void DecideRows(const MaskRule& rule, const DecideInput<T>& in, const DecideOutput<T>& out) {
#pragma omp parallel for schedule(static) if (in.tokens >= 256)
  for (int64_t first = 0; first < in.tokens; first += kFloats) DecideFour<D>(rule, in, out, first);
}

}  // namespace

template <typename T>
void DecideCpu(const MaskRule& rule, const DecideInput<T>& in, const DecideOutput<T>& out) {
  WithDivergence(rule.proximity, [&]<typename D>(D) { DecideRows<D>(rule, in, out); });
}

template void DecideCpu(const MaskRule&, const DecideInput<float>&, const DecideOutput<float>&);
template void DecideCpu(const MaskRule&, const DecideInput<double>&, const DecideOutput<double>&);

}  // namespace augur
