#include <limits>

#include "kernels/decide.h"
#include "kernels/decide_math.h"
#include "kernels/vector_math.h"

namespace augur {
namespace {

// Two values as doubles; where only one is left, `fill` stands in for the second.
template <typename T>
Doubles Load(const T* from, int count, T fill) {
  return Doubles{static_cast<double>(from[0]), static_cast<double>(count > 1 ? from[1] : fill)};
}

// Sums over one row. Unused columns are selected away rather than skipped, and the sums that only the other
// divergence needs are left out.
template <typename T, bool kTv>
SupportSums SumRow(const T* behaviour, const T* policy, int columns) {
  constexpr T kUnused = -std::numeric_limits<T>::infinity();
  const Doubles zero{}, ones = zero + 1;
  Doubles count{}, mu_sum{}, pi_sum{}, kl{}, gap{}, coupling{}, square{}, signed_pi{}, signed_square{};
  for (int c = 0; c < columns; c += kDoubles) {
    const Doubles b = Load(behaviour + c, columns - c, kUnused);
    const auto used = b != static_cast<double>(kUnused);
    const Doubles log_mu = used ? b : zero;
    const Doubles log_pi = used ? Load(policy + c, columns - c, T(0)) : zero;
    const Doubles mu = used ? VectorExp(log_mu) : zero;
    const Doubles pi = used ? VectorExp(log_pi) : zero;
    count += used ? ones : zero;
    mu_sum += mu;
    pi_sum += pi;
    square += pi * pi;
    if constexpr (kTv) {
      const Doubles sign = (mu > pi ? ones : zero) - (mu < pi ? ones : zero);
      gap += sign * (mu - pi);
      signed_pi += sign * pi;
      signed_square += sign * pi * pi;
    } else {
      kl += mu * (log_mu - log_pi);
      coupling += pi * (mu - pi);
    }
  }
  return {SumOf(count),    SumOf(mu_sum), SumOf(pi_sum),    SumOf(kl),           SumOf(gap),
          SumOf(coupling), SumOf(square), SumOf(signed_pi), SumOf(signed_square)};
}

template <typename T>
Decided DecideRow(const MaskRule& rule, const DecideInput<T>& in, int64_t t) {
  const T* behaviour = in.behaviour + t * in.columns;
  const T* policy = in.policy + t * in.columns;
  if (in.columns == 0 || behaviour[0] == -std::numeric_limits<T>::infinity()) return {};
  const SupportSums sums = rule.proximity == Proximity::kTv ? SumRow<T, true>(behaviour, policy, in.columns)
                                                            : SumRow<T, false>(behaviour, policy, in.columns);
  const double log_mu = behaviour[0], log_pi = policy[0];
  const double square = in.tail_square ? static_cast<double>(in.tail_square[t]) : 0;
  const double tail = in.policy_tail ? static_cast<double>(in.policy_tail[t]) : 0;
  return DecideToken(rule, sums, {log_mu, log_pi, VectorExp(log_mu), VectorExp(log_pi)}, in.advantage[t],
                     static_cast<double>(in.vocab_size), in.tail_square ? &square : nullptr,
                     in.policy_tail ? &tail : nullptr);
}

}  // namespace

template <typename T>
void DecideCpu(const MaskRule& rule, const DecideInput<T>& in, const DecideOutput<T>& out) {
#pragma omp parallel for schedule(static) if (in.tokens >= 256)
  for (int64_t t = 0; t < in.tokens; ++t) {
    const Decided decided = DecideRow(rule, in, t);
    out.ratio[t] = static_cast<T>(decided.ratio);
    out.divergence[t] = static_cast<T>(decided.divergence);
    out.direction[t] = static_cast<T>(decided.direction);
    out.flags[t] = decided.flags;
  }
}

template void DecideCpu(const MaskRule&, const DecideInput<float>&, const DecideOutput<float>&);
template void DecideCpu(const MaskRule&, const DecideInput<double>&, const DecideOutput<double>&);

}  // namespace augur
