#include <algorithm>
#include <vector>

#include "kernels/adamw.h"
#include "kernels/adamw_math.h"

namespace augur {
namespace {

template <typename G>
void UpdateFloatStates(const AdamWArrays& a, const AdamWFactors& f) {
  const G* gradient = static_cast<const G*>(a.gradient);
  float *parameter = a.parameter, *first = static_cast<float*>(a.first);
  float* second = static_cast<float*>(a.second);
#pragma omp parallel for simd schedule(static)
  for (int64_t i = 0; i < a.size; ++i) {
    AdamWElement(f, static_cast<float>(gradient[i]), parameter + i, first + i, second + i);
  }
}

template <typename G>
void UpdateShortStates(const AdamWArrays& a, const AdamWFactors& f) {
  const G* gradient = static_cast<const G*>(a.gradient);
  auto *first = static_cast<BFloat16*>(a.first), *second = static_cast<BFloat16*>(a.second);
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < a.size; ++i) {
    float m = first[i], v = second[i];
    AdamWElement(f, static_cast<float>(gradient[i]), a.parameter + i, &m, &v);
    const Philox random = Philox::At(0, f.place + static_cast<uint64_t>(i), f.step);
    first[i].bits = RoundAtRandom(std::bit_cast<uint32_t>(m), random.word[0]);
    second[i].bits = RoundAtRandom(std::bit_cast<uint32_t>(v), random.word[1]);
  }
}

template <typename T>
double SquaredNorm(const T* data, int64_t size) {
  constexpr int64_t kBlock = 1 << 14;
  const int64_t blocks = (size + kBlock - 1) / kBlock;
  std::vector<double> sums(blocks);
#pragma omp parallel for schedule(static)
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t end = std::min(size, (b + 1) * kBlock);
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = b * kBlock; i < end; ++i) {
      const double value = static_cast<float>(data[i]);
      sum += value * value;
    }
    sums[b] = sum;
  }
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

}  // namespace

void AdamWCpu(const AdamWArrays& a, const AdamWSettings& settings) {
  const AdamWFactors factors = AdamWFactors::From(settings);
  const bool short_gradient = a.gradient_type == ElementType::kBFloat16;
  if (a.state_type == ElementType::kBFloat16) {
    short_gradient ? UpdateShortStates<BFloat16>(a, factors) : UpdateShortStates<float>(a, factors);
  } else {
    short_gradient ? UpdateFloatStates<BFloat16>(a, factors) : UpdateFloatStates<float>(a, factors);
  }
  if (a.copy == nullptr) return;
  auto* copy = static_cast<BFloat16*>(a.copy);
#pragma omp parallel for simd schedule(static)
  for (int64_t i = 0; i < a.size; ++i) copy[i] = BFloat16::From(a.parameter[i]);
}

double SquaredNormCpu(const void* data, ElementType type, int64_t size) {
  if (type == ElementType::kBFloat16) return SquaredNorm(static_cast<const BFloat16*>(data), size);
  return SquaredNorm(static_cast<const float*>(data), size);
}

}  // namespace augur
