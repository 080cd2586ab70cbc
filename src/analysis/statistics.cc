#include "analysis/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/random.h"

namespace augur {
namespace {

constexpr double kUndefined = std::numeric_limits<double>::quiet_NaN();

// The continued fraction of the incomplete beta function (Lentz's method).
double BetaFraction(double a, double b, double x) {
  constexpr double kTiny = 1e-300, kPrecise = 1e-15;
  constexpr int kMostTerms = 500;
  double c = 1, d = 1 - (a + b) * x / (a + 1);
  d = 1 / (std::abs(d) < kTiny ? kTiny : d);
  double h = d;
  for (int m = 1; m <= kMostTerms; ++m) {
    const double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
    const double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
    double delta = 1;
    for (const double term : {even, odd}) {
      d = 1 + term * d;
      c = 1 + term / c;
      d = 1 / (std::abs(d) < kTiny ? kTiny : d);
      if (std::abs(c) < kTiny) c = kTiny;
      delta = c * d;
      h *= delta;
    }
    if (std::abs(delta - 1) < kPrecise) break;
  }
  return h;
}

// I_x(a, b).
double IncompleteBeta(double a, double b, double x) {
  if (x <= 0) return 0;
  if (x >= 1) return 1;
  const double front =
      std::exp(std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) + a * std::log(x) + b * std::log1p(-x));
  if (x < (a + 1) / (a + b + 2)) return front * BetaFraction(a, b, x) / a;
  return 1 - front * BetaFraction(b, a, 1 - x) / b;
}

// Two-sided sign test of `small` against `large` successes.
double SignTest(int64_t below, int64_t above) {
  const int64_t n = below + above, few = std::min(below, above);
  if (n == 0) return kUndefined;
  // P(X <= few) of a fair coin is I_{1/2}(n - few, few + 1).
  const double tail = IncompleteBeta(static_cast<double>(n - few), static_cast<double>(few + 1), 0.5);
  return std::min(1.0, 2 * tail);
}

}  // namespace

std::vector<double> WithoutNan(std::vector<double> values) {
  std::erase_if(values, [](double x) { return std::isnan(x); });
  return values;
}

double Mean(std::span<const double> values) {
  if (values.empty()) return kUndefined;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double StandardError(std::span<const double> values) {
  if (values.size() < 2) return kUndefined;
  const double mean = Mean(values), n = static_cast<double>(values.size());
  double squares = 0;
  for (const double x : values) squares += (x - mean) * (x - mean);
  return std::sqrt(squares / (n - 1) / n);
}

double StudentTwoSided(double t, double freedom) {
  return IncompleteBeta(freedom / 2, 0.5, freedom / (freedom + t * t));
}

PairedTest TestDifferences(std::span<const double> differences) {
  PairedTest test;
  test.count = static_cast<int64_t>(differences.size());
  test.mean = Mean(differences);
  test.standard_error = StandardError(differences);
  // Differences that are all equal, as those of counts may be, say nothing of how they vary.
  test.t = test.standard_error > 0 ? test.mean / test.standard_error : kUndefined;
  test.p = std::isnan(test.t) ? kUndefined : StudentTwoSided(test.t, static_cast<double>(test.count - 1));
  test.below = std::ranges::count_if(differences, [](double x) { return x < 0; });
  test.above = std::ranges::count_if(differences, [](double x) { return x > 0; });
  test.sign_p = SignTest(test.below, test.above);
  return test;
}

double StudentQuantile(double level, double freedom) {
  double low = 0, high = 1;
  while (StudentTwoSided(high, freedom) > 1 - level) high *= 2;
  for (int i = 0; i < 200 && low < high; ++i) {  // the tail falls as t grows
    const double middle = std::midpoint(low, high);
    (StudentTwoSided(middle, freedom) > 1 - level ? low : high) = middle;
  }
  return high;
}

Interval MeanInterval(std::span<const double> values, double level) {
  if (values.size() < 2) return {kUndefined, kUndefined};
  const double half = StudentQuantile(level, static_cast<double>(values.size() - 1)) * StandardError(values);
  return {Mean(values) - half, Mean(values) + half};
}

Interval BootstrapMean(std::span<const double> values, double level, int64_t resamples, uint64_t seed) {
  if (values.empty()) return {kUndefined, kUndefined};
  const auto n = static_cast<uint64_t>(values.size());
  std::vector<double> means(static_cast<size_t>(resamples));
  for (int64_t r = 0; r < resamples; ++r) {
    double sum = 0;
    for (uint64_t i = 0; i < n; ++i) {
      const Philox random = Philox::At(seed, i, static_cast<uint64_t>(r));
      sum += values[(uint64_t{random.word[0]} * n) >> 32];
    }
    means[static_cast<size_t>(r)] = sum / static_cast<double>(n);
  }
  std::ranges::sort(means);
  return {Quantile(means, (1 - level) / 2), Quantile(means, (1 + level) / 2)};
}

double Quantile(std::span<const double> sorted, double q) {
  const double place = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], place - static_cast<double>(below));
}

std::vector<EcdfPoint> Ecdf(std::vector<double> values, size_t count) {
  std::ranges::sort(values);
  std::vector<EcdfPoint> points;
  const size_t n = values.size();
  const size_t shown = std::min(n, count);
  for (size_t i = 0; i < shown; ++i) {
    const size_t at = shown == n || shown < 2 ? i : i * (n - 1) / (shown - 1);
    points.push_back({values[at], static_cast<double>(at + 1) / static_cast<double>(n)});
  }
  return points;
}

}  // namespace augur
