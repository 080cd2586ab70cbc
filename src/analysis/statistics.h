// The statistics that analyses and comparisons report.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace augur {

// The values that are there: NaN stands for one that is not.
std::vector<double> WithoutNan(std::vector<double> values);

double Mean(std::span<const double> values);  // NaN of none
// Of the mean: s / sqrt(n) with the n - 1 standard deviation; NaN of fewer than two.
double StandardError(std::span<const double> values);

// Whether a mean difference is zero (Student's paired t, two-sided), and how many differences are below and
// above zero (the sign test, two-sided, ties left out). p is NaN where it cannot be had: fewer than two
// differences, or all of them equal and zero.
struct PairedTest {
  int64_t count = 0;
  double mean = 0, standard_error = 0;
  double t = 0, p = 1;
  int64_t below = 0, above = 0;
  double sign_p = 1;
};
PairedTest TestDifferences(std::span<const double> differences);

// P(|T| > |t|) of Student's t with `freedom` degrees.
double StudentTwoSided(double t, double freedom);

// The t with P(|T| <= t) = level, below 1.
double StudentQuantile(double level, double freedom);

// Student's interval of the mean, m -+ t s / sqrt(n) with n - 1 degrees of freedom: it holds the true mean in
// the share `level` of repetitions for any number of normal values, few as they may be, and leaves zero out
// exactly where TestDifferences gives a p below 1 - level. NaN of fewer than two.
struct Interval {
  double low = 0, high = 0;
};
Interval MeanInterval(std::span<const double> values, double level);
// The percentile bootstrap of the mean: `resamples` draws with replacement by the counter-based generator, so
// that the same values give the same interval everywhere. For values that are far from normal, such as shares
// that are often 0 or 1. NaN of none.
Interval BootstrapMean(std::span<const double> values, double level, int64_t resamples, uint64_t seed);

// The q-quantile, linear between order statistics (numpy's default). `sorted` must not be empty.
double Quantile(std::span<const double> sorted, double q);

// An empirical distribution function as `count` points (x, F(x)), evenly spaced in F from its first to its
// last value; every value where there are no more than `count`.
struct EcdfPoint {
  double x = 0, f = 0;
};
std::vector<EcdfPoint> Ecdf(std::vector<double> values, size_t count);

}  // namespace augur
