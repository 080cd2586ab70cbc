#include <limits>
#include <vector>

#include "kernels/decide.h"
#include "kernels/decide_math.h"
#include "kernels/vector_math.h"

namespace augur {
namespace {

// Rows are worked in blocks so that the exponentials, most of the cost, run over long contiguous arrays.
constexpr int64_t kBlock = 64;

template <typename T>
void DecideBlock(const MaskRule& rule, const DecideInput<T>& in, const DecideOutput<T>& out, int64_t begin,
                 int64_t end, double* mu, double* pi) {
  constexpr T kUnused = -std::numeric_limits<T>::infinity();
  const int columns = in.columns;
  const T* behaviour = in.behaviour + begin * columns;
  const T* policy = in.policy + begin * columns;
  const int64_t cells = (end - begin) * columns;
#pragma omp simd
  for (int64_t i = 0; i < cells; ++i) {
    mu[i] = VectorExp(static_cast<double>(behaviour[i]));
    pi[i] = VectorExp(static_cast<double>(policy[i]));
  }
  for (int64_t t = begin; t < end; ++t) {
    const int64_t row = (t - begin) * columns;
    Decided decided;
    if (columns > 0 && behaviour[row] != kUnused) {
      SupportSums sums;
      for (int c = 0; c < columns; ++c) {
        const int64_t i = row + c;
        if (behaviour[i] != kUnused) Accumulate(&sums, behaviour[i], policy[i], mu[i], pi[i]);
      }
      const SampledToken y{static_cast<double>(behaviour[row]), static_cast<double>(policy[row]), mu[row],
                           pi[row]};
      const double square = in.tail_square ? static_cast<double>(in.tail_square[t]) : 0;
      const double tail = in.policy_tail ? static_cast<double>(in.policy_tail[t]) : 0;
      decided = DecideToken(rule, sums, y, in.advantage[t], static_cast<double>(in.vocab_size),
                            in.tail_square ? &square : nullptr, in.policy_tail ? &tail : nullptr);
    }
    out.ratio[t] = static_cast<T>(decided.ratio);
    out.divergence[t] = static_cast<T>(decided.divergence);
    out.direction[t] = static_cast<T>(decided.direction);
    out.flags[t] = decided.flags;
  }
}

}  // namespace

template <typename T>
void DecideCpu(const MaskRule& rule, const DecideInput<T>& in, const DecideOutput<T>& out) {
#pragma omp parallel if (in.tokens >= 4 * kBlock)
  {
    std::vector<double> mu(kBlock * in.columns), pi(kBlock * in.columns);
#pragma omp for schedule(static)
    for (int64_t begin = 0; begin < in.tokens; begin += kBlock) {
      DecideBlock(rule, in, out, begin, std::min(begin + kBlock, in.tokens), mu.data(), pi.data());
    }
  }
}

template void DecideCpu(const MaskRule&, const DecideInput<float>&, const DecideOutput<float>&);
template void DecideCpu(const MaskRule&, const DecideInput<double>&, const DecideOutput<double>&);

}  // namespace augur
