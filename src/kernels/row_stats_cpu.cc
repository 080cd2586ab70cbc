#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/element_cpu.h"
#include "kernels/row_stats.h"
#include "kernels/row_stats_math.h"
#include "kernels/vector_math.h"

namespace augur {
namespace {

constexpr int64_t kBlock = 512;  // short enough that float sums within it lose nothing that matters

float Exp(float x) { return VectorExp(x); }
double Exp(double x) { return std::exp(x); }  // double logits are for tests: take the exact one

Floats LoadFloats(const float* from) {
  Floats all;
  std::memcpy(&all, from, sizeof(all));
  return all;
}

void StoreFloats(Floats all, float* to) { std::memcpy(to, &all, sizeof(all)); }

// The sums of a block relative to its own or an earlier maximum.
template <typename T>
struct BlockSums {
  T sum = 0, square = 0, weighted = 0;
};

double Largest(const double* z, int64_t n) { return *std::max_element(z, z + n); }

float Largest(const float* z, int64_t n) {
  Floats top = LoadFloats(z);
  for (int64_t i = kFloats; i < n; i += kFloats) {
    const Floats next = LoadFloats(z + i);
    top = next > top ? next : top;
  }
  return std::max(std::max(top[0], top[1]), std::max(top[2], top[3]));
}

// e is 0 far below the maximum; the bound keeps 0 * -inf out of the weighted sum.
constexpr float kFarBelow = -200;

BlockSums<double> SumBlock(const double* z, int64_t n, double max) {
  BlockSums<double> sums;
  for (int64_t i = 0; i < n; ++i) {
    const double d = z[i] - max, e = std::exp(d);
    sums.sum += e;
    sums.square += e * e;
    sums.weighted += e * (d < kFarBelow ? kFarBelow : d);
  }
  return sums;
}

BlockSums<float> SumBlock(const float* z, int64_t n, float max) {
  Floats sum{}, square{}, weighted{};
  for (int64_t i = 0; i < n; i += kFloats) {
    const Floats d = LoadFloats(z + i) - max;
    const Floats e = VectorExp(d);
    sum += e;
    square += e * e;
    weighted += e * AtLeast(d, kFarBelow);
  }
  return {SumOf(sum), SumOf(square), SumOf(weighted)};
}

// z has room behind n for a whole vector.
template <typename T>
void AddBlock(T* z, int64_t n, SoftmaxSums<double>* sums) {
  for (int64_t i = n; i % kFloats != 0; ++i) z[i] = -std::numeric_limits<T>::infinity();
  const T top = Largest(z, n);
  if (!(top > -std::numeric_limits<T>::infinity()) && top == top) return;  // nothing but -inf
  if (top > sums->max) sums->Rebase(top);
  const BlockSums<T> block = SumBlock(z, n, static_cast<T>(sums->max));
  sums->sum += block.sum;
  sums->square += block.square;
  sums->weighted += block.weighted;
}

// The gradient of plain logits, in place: factor * e^(logit * inverse_temperature - log_sum_exp).
void DenseGradient(double* block, int64_t n, double inverse_temperature, double log_sum_exp, double factor) {
  for (int64_t i = 0; i < n; ++i) block[i] = factor * std::exp(block[i] * inverse_temperature - log_sum_exp);
}

void DenseGradient(float* block, int64_t n, float inverse_temperature, float log_sum_exp, float factor) {
  for (int64_t i = 0; i < n; i += kFloats) {
    const Floats log_pi = LoadFloats(block + i) * inverse_temperature - log_sum_exp;
    StoreFloats(factor * VectorExp(log_pi), block + i);
  }
}

// Adds logits[begin, end) to the sums.
template <typename T, typename E>
void AddSegment(const E* logits, int64_t begin, int64_t end, const LogitScale<T>& scale,
                SoftmaxSums<double>* sums) {
  T z[kBlock];
  for (int64_t start = begin; start < end; start += kBlock) {
    const int64_t n = std::min(kBlock, end - start);
    if (scale.softcap > 0) {
      for (int64_t i = 0; i < n; ++i) z[i] = scale(static_cast<T>(Widen(logits[start + i])));
    } else {
      for (int64_t i = 0; i < n; ++i) {
        z[i] = static_cast<T>(Widen(logits[start + i])) * scale.inverse_temperature;
      }
    }
    AddBlock(z, n, sums);
  }
}

template <typename T, typename E>
void RowStatsOf(const LogitRows& rows, const RowStats<T>& out, int64_t r, std::vector<int32_t>* ids) {
  const LogitScale<T> scale{static_cast<T>(1 / rows.temperature), static_cast<T>(rows.softcap)};
  const E* logits = static_cast<const E*>(rows.logits) + r * rows.width;
  const int32_t* support = rows.support + r * rows.columns;
  ids->assign(support, support + rows.columns);
  std::ranges::sort(*ids);

  SoftmaxSums<double> tail;
  int64_t begin = 0;
  for (const int32_t id : *ids) {
    if (id < 0) continue;
    AddSegment(logits, begin, id, scale, &tail);
    begin = id + 1;
  }
  AddSegment(logits, begin, rows.vocab, scale, &tail);

  SoftmaxSums<double> all = tail;
  T* logprobs = out.support_logprobs + r * rows.columns;
  for (int c = 0; c < rows.columns; ++c) {
    logprobs[c] = -std::numeric_limits<T>::infinity();
    if (support[c] < 0) continue;
    logprobs[c] = scale(out.support_logits ? out.support_logits[r * rows.columns + c]
                                           : static_cast<T>(Widen(logits[support[c]])));
    all.Add(logprobs[c]);
  }
  const double log_sum_exp = all.max + std::log(all.sum);
  const double tail_scale = tail.sum > 0 ? std::exp(tail.max - log_sum_exp) : 0;
  for (int c = 0; c < rows.columns; ++c) logprobs[c] = static_cast<T>(logprobs[c] - log_sum_exp);
  out.log_sum_exp[r] = static_cast<T>(log_sum_exp);
  out.entropy[r] = static_cast<T>(std::log(all.sum) - all.weighted / all.sum);
  out.tail_mass[r] = static_cast<T>(tail.sum * tail_scale);
  out.tail_square[r] = static_cast<T>(tail.square * tail_scale * tail_scale);
}

template <typename T>
bool IsZeroRow(const LogitRows& rows, const RowGradient<T>& parts, int64_t r) {
  if (parts.dense[r] != 0 || (parts.entropy_weight && parts.entropy_weight[r] != 0)) return false;
  const T* sparse = parts.sparse + r * rows.columns;
  return std::all_of(sparse, sparse + rows.columns, [](T g) { return g == 0; });
}

template <typename T, typename E>
void RowGradientOf(const LogitRows& rows, const RowGradient<T>& parts, int64_t target) {
  const int64_t r = parts.source ? parts.source[target] : target;
  E* gradient = static_cast<E*>(parts.gradient) + target * rows.width;
  if (IsZeroRow(rows, parts, r)) {
    std::memset(static_cast<void*>(gradient), 0, rows.width * sizeof(E));
    return;
  }
  const LogitScale<T> scale{static_cast<T>(1 / rows.temperature), static_cast<T>(rows.softcap)};
  const E* logits = static_cast<const E*>(rows.logits) + r * rows.width;
  const T upstream = parts.scale ? *parts.scale : T(1);
  const T log_sum_exp = parts.log_sum_exp[r];
  const T entropy_weight = parts.entropy_weight ? parts.entropy_weight[r] : T(0);
  const T constant = parts.dense[r] + (entropy_weight != 0 ? entropy_weight * parts.entropy[r] : T(0));
  const int32_t* support = rows.support + r * rows.columns;

  const auto gradient_at = [&](T log_pi, T sparse) {
    const T pi = Exp(log_pi);
    const T dense = pi * (constant + (entropy_weight != 0 && pi > 0 ? entropy_weight * log_pi : T(0)));
    return upstream * scale.Slope(log_pi + log_sum_exp) * (dense + sparse);
  };
  // The support is computed first: the gradient may overwrite the logits.
  std::vector<T> at_support(rows.columns);
  for (int c = 0; c < rows.columns; ++c) {
    if (support[c] < 0) continue;
    const T log_pi = parts.support_logprobs ? parts.support_logprobs[r * rows.columns + c]
                                            : scale(static_cast<T>(Widen(logits[support[c]]))) - log_sum_exp;
    at_support[c] = gradient_at(log_pi, parts.sparse[r * rows.columns + c]);
  }
  const bool plain = entropy_weight == 0 && rows.softcap == 0;
  const T factor = upstream * scale.inverse_temperature * constant;
  T block[kBlock] = {};  // in between, so that the loops need not fear that logits and gradient overlap
  for (int64_t start = 0; start < rows.vocab; start += kBlock) {
    const int64_t n = std::min(kBlock, rows.vocab - start);
    for (int64_t i = 0; i < n; ++i) block[i] = static_cast<T>(Widen(logits[start + i]));
    if (plain) {
      DenseGradient(block, n, scale.inverse_temperature, log_sum_exp, factor);
    } else {
      for (int64_t i = 0; i < n; ++i) block[i] = gradient_at(scale(block[i]) - log_sum_exp, T(0));
    }
    for (int64_t i = 0; i < n; ++i) Store(block[i], &gradient[start + i]);
  }
  for (int c = 0; c < rows.columns; ++c) {
    if (support[c] >= 0) Store(at_support[c], &gradient[support[c]]);
  }
  for (int64_t j = rows.vocab; j < rows.width; ++j) Store(T(0), &gradient[j]);
}

}  // namespace

template <typename T>
void RowStatsCpu(const LogitRows& rows, const RowStats<T>& stats) {
  WithElement<T>(rows.type, [&](auto element) {
    using E = decltype(element);
#pragma omp parallel
    {
      std::vector<int32_t> ids;
#pragma omp for schedule(static)
      for (int64_t r = 0; r < rows.rows; ++r) RowStatsOf<T, E>(rows, stats, r, &ids);
    }
  });
}

template <typename T>
void RowGradientCpu(const LogitRows& rows, const RowGradient<T>& parts) {
  WithElement<T>(rows.type, [&](auto element) {
    using E = decltype(element);
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows.rows; ++r) RowGradientOf<T, E>(rows, parts, r);
  });
}

template void RowStatsCpu(const LogitRows&, const RowStats<float>&);
template void RowStatsCpu(const LogitRows&, const RowStats<double>&);
template void RowGradientCpu(const LogitRows&, const RowGradient<float>&);
template void RowGradientCpu(const LogitRows&, const RowGradient<double>&);

}  // namespace augur
