// Sampling on a GPU against sampling on the CPU: the same tokens for the same draws, the same support.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "kernels/decode/sample_support.h"
#include "kernels/device.h"

namespace augur {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Results {
  std::vector<int32_t> tokens, ids;
  std::vector<float> logprobs, support;
  std::vector<uint8_t> finite;
};

template <typename T>
Results Sample(Device device, const std::vector<T>& logits, const std::vector<SampleDraw>& draws,
               const SampleSettings& settings) {
  const auto count = static_cast<int64_t>(draws.size()), columns = settings.columns();
  DeviceArray<T> rows(device, logits);
  DeviceArray<SampleDraw> drawn(device, draws);
  DeviceArray<int32_t> tokens(device, std::vector<int32_t>(count, -77)),
      ids(device, std::vector<int32_t>(count * columns, -77));
  DeviceArray<float> logprobs(device, std::vector<float>(count, 77)),
      support(device, std::vector<float>(count * columns, 77));
  DeviceArray<uint8_t> finite(device, std::vector<uint8_t>(count, 77));
  const SampleResults out{tokens.data(), logprobs.data(), ids.data(), support.data(), finite.data()};
  if (device == Device::kCpu) {
    SampleSupportCpu(rows.data(), drawn.data(), count, settings, out);
  } else {
    DeviceArray<uint8_t> workspace(device,
                                   std::vector<uint8_t>(SampleSupportWorkspaceBytes(count, settings), 0xff));
    SampleSupportCuda(sizeof(T) == 2 ? ElementType::kBFloat16 : ElementType::kFloat, rows.data(),
                      drawn.data(), count, settings, out, workspace.data(), nullptr);
    return {tokens.ToHost(), ids.ToHost(), logprobs.ToHost(), support.ToHost(), finite.ToHost()};
  }
  return {tokens.ToHost(), ids.ToHost(), logprobs.ToHost(), support.ToHost(), finite.ToHost()};
}

std::vector<SampleDraw> Draws(int rows, int each) {
  std::vector<SampleDraw> draws;
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < each; ++i) draws.push_back(MakeSampleDraw(r, 11, 5 + r, i, 3));
  }
  return draws;
}

enum class Kind { kRandom, kTied, kPeaked, kFlat, kManyMinusInf, kAscending };

template <typename T>
std::vector<T> Logits(Kind kind, int64_t rows, int64_t vocab, int64_t stride) {
  std::mt19937 random(static_cast<int>(kind) + 100);
  std::normal_distribution<float> normal;
  std::vector<T> out;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < stride; ++i) {
      float x = 3 * normal(random);
      if (kind == Kind::kTied) x = std::round(x);
      if (kind == Kind::kPeaked) x = i == 7 * r % vocab ? 40.0f : 0.1f * x;
      if (kind == Kind::kFlat) x = -2.5f;
      if (kind == Kind::kManyMinusInf && (i * 37 + r) % vocab > 12) x = -kInf;
      if (kind == Kind::kAscending) x = 1e-3f * static_cast<float>(i);
      out.push_back(FromFloat<T>(i < vocab ? x : kInf));  // padding that must not be looked at
    }
  }
  return out;
}

template <typename T>
void ExpectSame(const std::vector<T>& logits, const std::vector<SampleDraw>& draws,
                const SampleSettings& settings) {
  const Results cpu = Sample(Device::kCpu, logits, draws, settings);
  const Results gpu = Sample(Device::kCuda, logits, draws, settings);
  const int64_t columns = settings.columns();
  EXPECT_EQ(cpu.finite, gpu.finite);
  size_t differ = 0;
  for (size_t d = 0; d < draws.size(); ++d) {
    if (cpu.tokens[d] != gpu.tokens[d]) {
      ++differ;  // the draw fell within rounding of a boundary
      continue;
    }
    if (!cpu.finite[d]) {
      EXPECT_TRUE(std::isnan(gpu.logprobs[d]));
    } else {
      ASSERT_NEAR(cpu.logprobs[d], gpu.logprobs[d], 1e-5 * (1 + std::fabs(cpu.logprobs[d]))) << "draw " << d;
    }
    for (int64_t c = 0; c < columns; ++c) {
      const float wanted = cpu.support[d * columns + c];
      ASSERT_EQ(cpu.ids[d * columns + c], gpu.ids[d * columns + c]) << "draw " << d << " column " << c;
      if (wanted == -kInf) {
        ASSERT_EQ(gpu.support[d * columns + c], -kInf);
      } else {
        ASSERT_NEAR(wanted, gpu.support[d * columns + c], 1e-5 * (1 + std::fabs(wanted)));
      }
    }
  }
  EXPECT_LE(differ, draws.size() / 200) << "of " << draws.size() << " draws";
}

template <typename T>
void CompareKinds(int64_t vocab, int64_t stride, SampleSettings settings) {
  settings.vocab_size = vocab;
  settings.stride = stride;
  for (const Kind kind :
       {Kind::kRandom, Kind::kTied, Kind::kPeaked, Kind::kFlat, Kind::kManyMinusInf, Kind::kAscending}) {
    SCOPED_TRACE(testing::Message() << "kind " << static_cast<int>(kind) << ", vocabulary " << vocab
                                    << ", temperature " << settings.temperature << ", K "
                                    << settings.support);
    ExpectSame(Logits<T>(kind, 3, vocab, stride), Draws(3, 200), settings);
  }
}

TEST(SampleSupportCuda, EqualsTheCpu) {
  for (const float temperature : {1.0f, 0.6f, 0.0f}) {
    for (const int32_t support : {0, 1, 20, 64}) {
      SampleSettings settings;
      settings.temperature = temperature;
      settings.support = support;
      CompareKinds<float>(20000, 20004, settings);
      CompareKinds<BFloat16>(20000, 20008, settings);
      CompareKinds<float>(277, 279, settings);  // rows that are not aligned
      CompareKinds<BFloat16>(8193, 8193, settings);
    }
  }
}

TEST(SampleSupportCuda, TakesMoreDrawsThanAGridHasRows) {
  SampleSettings settings;
  settings.support = 2;
  settings.vocab_size = settings.stride = 300;
  ExpectSame(Logits<float>(Kind::kRandom, 2, 300, 300), Draws(2, 35000), settings);
}

TEST(SampleSupportCuda, EqualsTheCpuOnAFullVocabulary) {
  SampleSettings settings;
  settings.support = 20;
  CompareKinds<float>(151936, 151936, settings);
  CompareKinds<BFloat16>(151936, 151936, settings);
}

TEST(SampleSupportCuda, EqualsTheCpuUnderTruncations) {
  for (const int64_t top_k : {0, 1, 10, 64, 100}) {
    for (const auto& [top_p, min_p] : {std::pair(1.0f, 0.0f), {0.7f, 0.0f}, {1.0f, 0.1f}, {0.9f, 0.02f}}) {
      SampleSettings settings;
      settings.support = 5;
      settings.top_k = top_k;
      settings.top_p = top_p;
      settings.min_p = min_p;
      settings.vocab_size = settings.stride = 3000;
      SCOPED_TRACE(testing::Message() << "top_k " << top_k << " top_p " << top_p << " min_p " << min_p);
      for (const Kind kind : {Kind::kRandom, Kind::kTied, Kind::kPeaked, Kind::kManyMinusInf}) {
        ExpectSame(Logits<float>(kind, 2, 3000, 3000), Draws(2, 200), settings);
      }
    }
  }
}

TEST(SampleSupportCuda, RecordsSupportsOfAnySize) {
  SampleSettings settings;
  for (const int32_t support : {65, 500, 2999}) {
    settings.support = support;
    CompareKinds<float>(3000, 3000, settings);
  }
}

TEST(SampleSupportCuda, MarksRowsThatAreNotFinite) {
  for (const int support : {0, 4, 100}) {
    SampleSettings settings;
    settings.support = support;
    settings.vocab_size = settings.stride = 9000;
    std::vector<float> logits = Logits<float>(Kind::kRandom, 5, 9000, 9000);
    logits[8500] = std::numeric_limits<float>::quiet_NaN();
    logits[9000 + 3] = kInf;
    std::fill_n(logits.begin() + 2 * 9000, 9000, -kInf);
    const Results gpu = Sample(Device::kCuda, logits, Draws(5, 1), settings);
    EXPECT_EQ(gpu.finite, (std::vector<uint8_t>{0, 0, 0, 1, 1}));
    EXPECT_EQ(gpu.tokens[0], -1);
    ExpectSame(logits, Draws(5, 1), settings);
  }
}

}  // namespace
}  // namespace augur
