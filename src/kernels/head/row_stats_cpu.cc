#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/head/row_stats.h"
#include "kernels/head/row_stats_math.h"
#include "kernels/simd/element_cpu.h"
#include "kernels/simd/vector_math.h"

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

// Adds a block to sums measured from sums->max, and turns it into unnormalised probabilities.
void SumExponentials(double* z, int64_t n, SoftmaxSums<double>* sums) {
  for (int64_t i = 0; i < n; ++i) {
    const double d = z[i] - sums->max, e = std::exp(d);
    sums->sum += e;
    sums->square += e * e;
    sums->weighted += e * (d < kFarBelow ? kFarBelow : d);
    z[i] = e;
  }
}

void SumExponentials(float* z, int64_t n, SoftmaxSums<double>* sums) {
  Floats sum{}, square{}, weighted{};
  const auto max = static_cast<float>(sums->max);
  for (int64_t i = 0; i < n; i += kFloats) {
    const Floats d = LoadFloats(z + i) - max;
    const Floats e = VectorExp(d);
    sum += e;
    square += e * e;
    weighted += e * AtLeast(d, kFarBelow);
    StoreFloats(e, z + i);
  }
  sums->sum += SumOf(sum);
  sums->square += SumOf(square);
  sums->weighted += SumOf(weighted);
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

// One row on its way through the sweep.
template <typename T, typename E>
class RowSweep {
 public:
  RowSweep(const LogitRows& rows, const RowStats<T>& stats, int64_t r)
      : rows_(rows),
        stats_(stats),
        row_(r),
        scale_{static_cast<T>(1 / rows.temperature), static_cast<T>(rows.softcap)},
        logits_(static_cast<const E*>(rows.logits) + r * rows.width),
        support_(rows.support + r * rows.columns) {}

  void Run(std::vector<int32_t>* ids) {
    ids->assign(support_, support_ + rows_.columns);
    std::ranges::sort(*ids);
    SoftmaxSums<double> tail;
    const bool measured = stats_.support_logits != nullptr && rows_.softcap == 0 && rows_.vocab_size > 0;
    if (measured) {
      tail.max = Reference();
      SumOutside(*ids, /*rebase=*/false, &tail);
    }
    const bool fits = measured && tail.square < std::numeric_limits<T>::max();
    if (stats_.reference != nullptr) {
      stats_.reference[row_] = static_cast<T>(tail.max);
      if (!fits) *stats_.overflowed = 1;
    } else if (!fits) {
      tail = {};
      SumOutside(*ids, /*rebase=*/true, &tail);
    }
    Finish(tail);
  }

 private:
  // The support's largest z; without support some z of the row.
  T Reference() const {
    T top = -std::numeric_limits<T>::infinity();
    for (int c = 0; c < rows_.columns; ++c) {
      if (support_[c] >= 0) top = std::max(top, SupportZ(c));
    }
    return top > -std::numeric_limits<T>::infinity() ? top : scale_(static_cast<T>(Widen(logits_[0])));
  }

  T SupportZ(int c) const {
    return scale_(stats_.support_logits ? stats_.support_logits[row_ * rows_.columns + c]
                                        : static_cast<T>(Widen(logits_[support_[c]])));
  }

  void SumOutside(const std::vector<int32_t>& sorted_ids, bool rebase, SoftmaxSums<double>* sums) const {
    int64_t begin = 0;
    for (const int32_t id : sorted_ids) {
      if (id < 0) continue;
      SumSegment(begin, id, rebase, sums);
      begin = id + 1;
    }
    SumSegment(begin, rows_.vocab_size, rebase, sums);
    if (stats_.reference == nullptr) return;
    E* unnormalised = Unnormalised();
    for (const int32_t id : sorted_ids) {
      if (id >= 0) Store(T(0), &unnormalised[id]);
    }
    for (int64_t j = rows_.vocab_size; j < rows_.width; ++j) Store(T(0), &unnormalised[j]);
  }

  void SumSegment(int64_t begin, int64_t end, bool rebase, SoftmaxSums<double>* sums) const {
    constexpr T kNothing = -std::numeric_limits<T>::infinity();
    T z[kBlock];
    for (int64_t start = begin; start < end; start += kBlock) {
      const int64_t n = std::min(kBlock, end - start);
      if (scale_.softcap > 0) {
        for (int64_t i = 0; i < n; ++i) z[i] = scale_(static_cast<T>(Widen(logits_[start + i])));
      } else {
        for (int64_t i = 0; i < n; ++i) {
          z[i] = static_cast<T>(Widen(logits_[start + i])) * scale_.inverse_temperature;
        }
      }
      for (int64_t i = n; i % kFloats != 0; ++i) z[i] = kNothing;
      if (rebase) {
        const T top = Largest(z, n);
        if (!(top > kNothing) && top == top) continue;
        if (top > sums->max) sums->Rebase(top);
      }
      SumExponentials(z, n, sums);
      if (stats_.reference == nullptr) continue;
      E* unnormalised = Unnormalised() + start;
      for (int64_t i = 0; i < n; ++i) Store(z[i], &unnormalised[i]);
    }
  }

  // The row of logits, to be overwritten.
  E* Unnormalised() const { return const_cast<E*>(logits_); }

  void Finish(const SoftmaxSums<double>& tail) const {
    SoftmaxSums<double> all = tail;
    T* logprobs = stats_.support_logprobs + row_ * rows_.columns;
    for (int c = 0; c < rows_.columns; ++c) {
      logprobs[c] = support_[c] >= 0 ? SupportZ(c) : -std::numeric_limits<T>::infinity();
      if (support_[c] >= 0) all.Add(logprobs[c]);
    }
    const double log_sum_exp = all.max + std::log(all.sum);
    const double tail_scale = tail.sum > 0 ? std::exp(tail.max - log_sum_exp) : 0;
    for (int c = 0; c < rows_.columns; ++c) logprobs[c] = static_cast<T>(logprobs[c] - log_sum_exp);
    stats_.log_sum_exp[row_] = static_cast<T>(log_sum_exp);
    stats_.entropy[row_] = static_cast<T>(std::log(all.sum) - all.weighted / all.sum);
    stats_.tail_mass[row_] = static_cast<T>(tail.sum * tail_scale);
    stats_.tail_square[row_] = static_cast<T>(tail.square * tail_scale * tail_scale);
  }

  const LogitRows& rows_;
  const RowStats<T>& stats_;
  const int64_t row_;
  const LogitScale<T> scale_;
  const E* logits_;
  const int32_t* support_;
};

template <typename T>
bool IsZeroRow(const LogitRows& rows, const RowGradient<T>& parts, int64_t r) {
  if (parts.dense[r] != 0 || (parts.entropy_weight && parts.entropy_weight[r] != 0)) return false;
  if (!parts.sparse) return true;
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
    const T dense =
        pi * (constant + (entropy_weight != 0 && log_pi > kFarBelow ? entropy_weight * log_pi : T(0)));
    return upstream * scale.Slope(log_pi + log_sum_exp) * (dense + sparse);
  };
  // The support is computed first: the gradient may overwrite the logits.
  std::vector<T> at_support(rows.columns);
  for (int c = 0; c < rows.columns; ++c) {
    if (support[c] < 0) continue;
    const T log_pi = parts.support_logprobs ? parts.support_logprobs[r * rows.columns + c]
                                            : scale(static_cast<T>(Widen(logits[support[c]]))) - log_sum_exp;
    at_support[c] = gradient_at(log_pi, parts.SparseAt(r, c, rows.columns));
  }
  const bool plain = entropy_weight == 0 && rows.softcap == 0;
  const T factor = upstream * scale.inverse_temperature * constant;
  T block[kBlock] = {};  // in between, so that the loops need not fear that logits and gradient overlap
  for (int64_t start = 0; start < rows.vocab_size; start += kBlock) {
    const int64_t n = std::min(kBlock, rows.vocab_size - start);
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
  for (int64_t j = rows.vocab_size; j < rows.width; ++j) Store(T(0), &gradient[j]);
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
      for (int64_t r = 0; r < rows.rows; ++r) RowSweep<T, E>(rows, stats, r).Run(&ids);
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
