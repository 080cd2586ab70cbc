#include "kernels/adamw.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/random.h"
#include "kernels/device.h"

namespace augur {
namespace {

// The update in float64, as torch.optim.AdamW documents it.
struct Truth {
  double p, m = 0, v = 0;
  void Step(const AdamWSettings& s, double gradient) {
    const double g = gradient * s.grad_scale, step = static_cast<double>(s.step);
    p -= s.lr * s.weight_decay * p;
    m = s.beta1 * m + (1 - s.beta1) * g;
    v = s.beta2 * v + (1 - s.beta2) * g * g;
    p -= s.lr * (m / (1 - std::pow(s.beta1, step))) / (std::sqrt(v / (1 - std::pow(s.beta2, step))) + s.eps);
  }
};

float Gradient(int64_t i, int64_t step) {
  return Philox::At(7, static_cast<uint64_t>(i), static_cast<uint64_t>(step)).Uniform(0) - 0.3f;
}

template <typename State>
void CheckAgainstTruth(double tolerance) {
  constexpr int64_t kSize = 1037;
  std::vector<float> p(kSize), g(kSize);
  std::vector<BFloat16> copy(kSize);
  std::vector<State> m(kSize), v(kSize);
  std::vector<Truth> truth(kSize);
  for (int64_t i = 0; i < kSize; ++i) truth[i].p = p[i] = 0.001f * static_cast<float>(i % 91);
  const ElementType type = sizeof(State) == 2 ? ElementType::kBFloat16 : ElementType::kFloat;
  AdamWSettings settings{.lr = 1e-2, .weight_decay = 0.1, .grad_scale = 0.5};
  for (settings.step = 1; settings.step <= 200; ++settings.step) {
    for (int64_t i = 0; i < kSize; ++i) {
      g[i] = Gradient(i, settings.step);
      truth[i].Step(settings, g[i]);
    }
    AdamWCpu({p.data(), copy.data(), g.data(), ElementType::kFloat, m.data(), v.data(), type, kSize},
             settings);
  }
  double difference = 0;
  for (int64_t i = 0; i < kSize; ++i) {
    EXPECT_NEAR(p[i], truth[i].p, tolerance);
    EXPECT_EQ(copy[i].bits, BFloat16::From(p[i]).bits);
    difference += (static_cast<double>(static_cast<float>(v[i])) - truth[i].v) / truth[i].v / kSize;
  }
  EXPECT_NEAR(difference, 0, 0.01);  // 16-bit averages keep their mean
}

TEST(AdamW, EqualsTheFormulaInFloat64) { CheckAgainstTruth<float>(2e-5); }
TEST(AdamW, StatesIn16BitsFollowItOnAverage) { CheckAgainstTruth<BFloat16>(0.05); }

#ifdef AUGUR_WITH_CUDA
// The same, whether memory is read in vectors or not.
template <typename Gradient, typename State>
void CheckCudaEqualsCpu(int64_t size, int64_t skipped) {
  SCOPED_TRACE(testing::Message() << size << " from " << skipped);
  std::vector<float> p(size);
  std::vector<Gradient> g(size);
  std::vector<BFloat16> copy(size);
  std::vector<State> m(size), v(size);
  for (int64_t i = 0; i < size; ++i) {
    p[i] = 0.001f * static_cast<float>(i % 91);
    if constexpr (sizeof(Gradient) == 2) {
      g[i] = BFloat16::From(augur::Gradient(i, 1));
    } else {
      g[i] = augur::Gradient(i, 1);
    }
  }
  const auto type = [](size_t bytes) { return bytes == 2 ? ElementType::kBFloat16 : ElementType::kFloat; };
  const AdamWSettings settings{.lr = 1e-2, .weight_decay = 0.1, .grad_scale = 0.5, .place = 3};
  DeviceArray<float> p_there(Device::kCuda, p);
  DeviceArray<Gradient> g_there(Device::kCuda, g);
  DeviceArray<BFloat16> copy_there(Device::kCuda, copy);
  DeviceArray<State> m_there(Device::kCuda, m), v_there(Device::kCuda, v);
  const int64_t count = size - skipped;
  AdamWCuda({p_there.data() + skipped, copy_there.data() + skipped, g_there.data() + skipped,
             type(sizeof(Gradient)), m_there.data() + skipped, v_there.data() + skipped, type(sizeof(State)),
             count},
            settings, nullptr);
  AdamWCpu({p.data() + skipped, copy.data() + skipped, g.data() + skipped, type(sizeof(Gradient)),
            m.data() + skipped, v.data() + skipped, type(sizeof(State)), count},
           settings);
  const std::vector<float> p_found = p_there.ToHost();
  const std::vector<BFloat16> copy_found = copy_there.ToHost();
  const std::vector<State> m_found = m_there.ToHost();
  for (int64_t i = 0; i < size; ++i) {
    EXPECT_NEAR(p_found[i], p[i], 1e-7) << i;
    EXPECT_NEAR(static_cast<float>(copy_found[i]), static_cast<float>(copy[i]), 1e-3) << i;
    EXPECT_NEAR(static_cast<float>(m_found[i]), static_cast<float>(m[i]), 1e-3) << i;
  }
}

TEST(AdamW, CudaEqualsCpu) {
  for (const auto& [size, skipped] : {std::pair<int64_t, int64_t>(4096, 0), {1037, 0}, {4096, 1}, {3, 0}}) {
    CheckCudaEqualsCpu<float, float>(size, skipped);
    CheckCudaEqualsCpu<BFloat16, float>(size, skipped);
    CheckCudaEqualsCpu<BFloat16, BFloat16>(size, skipped);
  }
}
#endif

TEST(SquaredNorm, AddsInFloat64) {
  std::vector<float> x(100000, 0.1f);
  EXPECT_NEAR(SquaredNormCpu(x.data(), ElementType::kFloat, 100000), 1000.0, 1e-4);
  x[50000] = NAN;
  EXPECT_TRUE(std::isnan(SquaredNormCpu(x.data(), ElementType::kFloat, 100000)));
}

}  // namespace
}  // namespace augur
