#include <algorithm>
#include <limits>

#include "kernels/decide.h"
#include "kernels/decide_math.h"
#include "kernels/vector_math.h"

namespace augur {
namespace {

constexpr int64_t kBlock = 64;  // rows worked on together
constexpr float kUnused = -std::numeric_limits<float>::infinity();

// Up to kFloats values; `fill` stands in for those beyond `count`.
Floats Load(const float* from, int count, float fill) {
  if (count >= kFloats) {
    Floats all;
    __builtin_memcpy(&all, from, sizeof(all));
    return all;
  }
  return Floats{from[0], count > 1 ? from[1] : fill, count > 2 ? from[2] : fill, fill};
}

// Sums over one row, and the sampled token's share of them. An unused column is given log-probs of -87, whose
// exponential vanishes beside any probability.
template <bool kTv>
SupportSums<float> SumRow(const float* behaviour, const float* policy, int columns, SampledToken<float>* y) {
  const Floats floor = Floats{} - 87.0f, zero{}, ones = zero + 1.0f;
  Floats mu_sum{}, pi_sum{}, kl{}, gap{}, coupling{}, square{}, signed_pi{}, signed_square{};
  Ints unused{};
  for (int c = 0; c < columns; c += kFloats) {
    const Floats b = Load(behaviour + c, columns - c, kUnused);
    const Ints is_unused = b == kUnused;
    const Floats log_mu = AtLeast(b, -87.0f);
    const Floats log_pi = is_unused ? floor : Load(policy + c, columns - c, -87);
    const Floats mu = VectorExp(log_mu), pi = VectorExp(log_pi);
    if (c == 0) *y = {behaviour[0], policy[0], mu[0], pi[0]};
    unused += is_unused;  // true is -1
    mu_sum += mu;
    pi_sum += pi;
    square += pi * pi;
    if constexpr (kTv) {
      const Floats sign = (log_mu > log_pi ? ones : zero) - (log_mu < log_pi ? ones : zero);
      gap += sign * (mu - pi);
      signed_pi += sign * pi;
      signed_square += sign * pi * pi;
    } else {
      kl += mu * (log_mu - log_pi);
      coupling += pi * (mu - pi);
    }
  }
  const int padded = (columns + kFloats - 1) / kFloats * kFloats;
  const int used = padded + unused[0] + unused[1] + unused[2] + unused[3];
  return {static_cast<float>(used), SumOf(mu_sum), SumOf(pi_sum),    SumOf(kl),           SumOf(gap),
          SumOf(coupling),          SumOf(square), SumOf(signed_pi), SumOf(signed_square)};
}

template <typename T>
void Write(const Decided<T>& decided, int64_t t, const auto& out) {
  using O = std::remove_reference_t<decltype(out.ratio[0])>;
  out.ratio[t] = static_cast<O>(decided.ratio);
  out.divergence[t] = static_cast<O>(decided.divergence);
  out.direction[t] = static_cast<O>(decided.direction);
  out.flags[t] = decided.flags;
}

template <typename T>
bool IsMissing(const DecideInput<T>& in, int64_t t) {
  return in.columns == 0 || in.behaviour[t * in.columns] == static_cast<T>(kUnused);
}

// First the sums of all rows, then the decisions: neither loop waits for the other's long chains of
// arithmetic.
template <bool kTv>
void DecideBlock(const MaskRule& rule, const DecideInput<float>& in, const DecideOutput<float>& out,
                 int64_t begin, int64_t end) {
  SupportSums<float> sums[kBlock];
  SampledToken<float> sampled[kBlock];
  for (int64_t t = begin; t < end; ++t) {
    const int64_t row = t * in.columns;
    sums[t - begin] = SumRow<kTv>(in.behaviour + row, in.policy + row, in.columns, &sampled[t - begin]);
  }
  for (int64_t t = begin; t < end; ++t) {
    if (IsMissing(in, t)) {
      Write(Decided<float>(), t, out);
      continue;
    }
    const Decided<float> fast =
        DecideToken<kTv>(rule, sums[t - begin], sampled[t - begin], FactsOf<float>(in, t));
    if (fast.delicate) {
      Write(DecideTokenInDouble<kTv>(rule, in, t), t, out);
    } else {
      Write(fast, t, out);
    }
  }
}

template <bool kTv>
void DecideBlock(const MaskRule& rule, const DecideInput<double>& in, const DecideOutput<double>& out,
                 int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    Write(IsMissing(in, t) ? Decided<double>() : DecideTokenInDouble<kTv>(rule, in, t), t, out);
  }
}

template <bool kTv, typename T>
void DecideRows(const MaskRule& rule, const DecideInput<T>& in, const DecideOutput<T>& out) {
#pragma omp parallel for schedule(static) if (in.tokens >= 4 * kBlock)
  for (int64_t begin = 0; begin < in.tokens; begin += kBlock) {
    DecideBlock<kTv>(rule, in, out, begin, std::min(begin + kBlock, in.tokens));
  }
}

}  // namespace

template <typename T>
void DecideCpu(const MaskRule& rule, const DecideInput<T>& in, const DecideOutput<T>& out) {
  if (rule.proximity == Proximity::kTv) {
    DecideRows<true>(rule, in, out);
  } else {
    DecideRows<false>(rule, in, out);
  }
}

template void DecideCpu(const MaskRule&, const DecideInput<float>&, const DecideOutput<float>&);
template void DecideCpu(const MaskRule&, const DecideInput<double>&, const DecideOutput<double>&);

}  // namespace augur
