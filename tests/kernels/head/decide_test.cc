#include "kernels/head/decide.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "kernels/device.h"
#include "mask/golden.h"
#include "mask/random_token.h"

namespace augur {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kUnwritten = 12345;

struct Batch {
  int columns = 0;
  int64_t vocab_size = 0;
  std::vector<float> behaviour, policy, advantage, tail_square, policy_tail;
  std::vector<float> tail_cube = {};

  int64_t size() const { return static_cast<int64_t>(advantage.size()); }

  // Adds a token, filling the unused columns with -inf and whatever a careless caller may leave in the
  // policy.
  void Add(const std::vector<double>& log_mu, const std::vector<double>& log_pi, double a, double square) {
    const float junk[] = {kNan, kInf, -kInf, 0, 1e30f};
    for (int c = 0; c < columns; ++c) {
      const bool used = c < static_cast<int>(log_mu.size());
      behaviour.push_back(used ? static_cast<float>(log_mu[c]) : -kInf);
      policy.push_back(used ? static_cast<float>(log_pi[c]) : junk[(c + advantage.size()) % 5]);
    }
    advantage.push_back(static_cast<float>(a));
    tail_square.push_back(static_cast<float>(square));
    tail_cube.push_back(static_cast<float>(square * std::sqrt(square)));  // as of one atom
    policy_tail.push_back(static_cast<float>(0.01 * (advantage.size() % 7)));
  }
};

struct Results {
  std::vector<float> ratio, divergence, direction, coefficient;
  std::vector<uint8_t> flags;
};

Results Decide(Device device, const MaskRule& rule, const Batch& batch, bool with_tail = false) {
  DeviceArray<float> behaviour(device, batch.behaviour), policy(device, batch.policy),
      advantage(device, batch.advantage), square(device, batch.tail_square), tail(device, batch.policy_tail),
      cube(device, batch.tail_cube);
  const std::vector<float> unwritten(batch.size(), kUnwritten);
  DeviceArray<float> ratio(device, unwritten), divergence(device, unwritten), direction(device, unwritten),
      coefficient(device, unwritten);
  DeviceArray<uint8_t> flags(device, std::vector<uint8_t>(batch.size(), 255));
  DecideInput<float> in{
      behaviour.data(), policy.data(), advantage.data(), square.data(), with_tail ? tail.data() : nullptr,
      batch.size(),     batch.columns, batch.vocab_size};
  in.tail_cube = cube.data();
  const DecideOutput<float> out{ratio.data(), divergence.data(), direction.data(), flags.data(),
                                coefficient.data()};
  if (device == Device::kCpu) {
    DecideCpu(rule, in, out);
  } else {
    DecideCuda(rule, in, out, nullptr);
  }
  return {ratio.ToHost(), divergence.ToHost(), direction.ToHost(), coefficient.ToHost(), flags.ToHost()};
}

TokenDecision Reference(const MaskRule& rule, const Batch& batch, int64_t t, bool with_tail) {
  const auto row = [&](const std::vector<float>& values) {
    return std::vector<double>(values.begin() + t * batch.columns, values.begin() + (t + 1) * batch.columns);
  };
  const auto behaviour = row(batch.behaviour), policy = row(batch.policy);
  TokenView token{behaviour, policy, batch.advantage[t], batch.vocab_size, batch.tail_square[t], {}};
  token.tail_cube = batch.tail_cube[t];
  if (with_tail) token.policy_tail = batch.policy_tail[t];
  return DecideReference(rule, token);
}

void ExpectReference(Device device, const MaskRule& rule, const Batch& batch, bool with_tail = false) {
  const Results results = Decide(device, rule, batch, with_tail);
  for (int64_t t = 0; t < batch.size(); ++t) {
    const TokenDecision expected = Reference(rule, batch, t, with_tail);
    const std::string where = "token " + std::to_string(t) + " of " + FormatRule(rule);
    ASSERT_NEAR(results.ratio[t], expected.ratio, 2e-6 * expected.ratio) << where;
    ASSERT_NEAR(results.divergence[t], expected.divergence, 2e-6 * (1 + expected.divergence)) << where;
    ASSERT_NEAR(results.direction[t], expected.direction, 2e-6 * (1 + std::abs(expected.direction))) << where;
    const uint8_t flags = results.flags[t];
    ASSERT_EQ((flags & kMissing) != 0, expected.missing) << where;
    const double delta = batch.advantage[t] < 0 && rule.delta_negative > 0 ? rule.delta_negative : rule.delta;
    const bool near = std::abs(expected.divergence - delta) < 1e-9 || std::abs(expected.direction) < 1e-9 ||
                      std::abs(expected.ratio - 1) < 1e-9;
    if (near) continue;
    const double scale = std::max(1.0, std::abs(expected.coefficient));
    ASSERT_NEAR(results.coefficient[t], expected.coefficient, 2e-5 * scale) << where;
    ASSERT_EQ((flags & kKept) != 0, expected.keep) << where;
    ASSERT_EQ((flags & kOutside) != 0, expected.outside) << where;
    if (std::abs(expected.direction) < 2e-6) continue;  // inside the region its sign decides nothing
    ASSERT_EQ((flags & kOutward) != 0, expected.outward) << where;
  }
}

class DecideTest : public testing::TestWithParam<Device> {};
INSTANTIATE_TEST_SUITE_P(, DecideTest, testing::ValuesIn(BuiltDevices()), DeviceName);

Batch RandomBatch(uint64_t seed, int tokens, int k, int vocab, double peak, double drift) {
  std::mt19937_64 random(seed);
  Batch batch{k + 1, vocab, {}, {}, {}, {}, {}};
  for (int t = 0; t < tokens; ++t) {
    const FullToken token = RandomToken(random, vocab, k, peak, drift);
    batch.Add(token.behaviour, token.policy, token.advantage, token.tail_square);
  }
  return batch;
}

// The rules that are decided token by token.
std::vector<std::string_view> TokenPresets() {
  std::vector<std::string_view> names;
  for (const std::string_view name : PresetNames()) {
    if (PresetRule(name).scope == Scope::kToken) names.push_back(name);
  }
  return names;
}

TEST_P(DecideTest, AgreesWithTheReferenceOnRandomTokens) {
  for (const std::string_view name : TokenPresets()) {
    for (const double drift : {0.0, 0.1, 1.0}) {
      ExpectReference(GetParam(), PresetRule(name), RandomBatch(1, 300, 20, 300, 2, drift));
    }
    ExpectReference(GetParam(), PresetRule(name), RandomBatch(2, 131, 20, 21, 1, 0.5));
    ExpectReference(GetParam(), PresetRule(name), RandomBatch(3, 131, 40, 64, 1, 0.5));
    ExpectReference(GetParam(), PresetRule(name), RandomBatch(4, 131, 1, 64, 1, 0.5));
    ExpectReference(GetParam(), PresetRule(name), RandomBatch(5, 64, 20, 300, 2, 0.5), /*with_tail=*/true);
  }
}

TEST_P(DecideTest, AgreesWithTheReferenceOnEveryCombinationOfFields) {
  const Batch batch = RandomBatch(6, 200, 20, 100, 1.5, 0.8);
  for (const std::string_view proximity : kNamesOf<Proximity>) {
    for (const std::string_view direction : kNamesOf<Direction>) {
      for (const char* support : {"topk", "binary"}) {
        for (const char* tail : {"aggregated", "uniform", "exact"}) {
          if (direction == "second_order" && proximity != "kl") continue;
          const std::string text = fmt::format(
              "proximity={} direction={} support={} tail={} delta=0.1 delta_negative=0.2 dual_clip=2",
              proximity, direction, support, tail);
          ExpectReference(GetParam(), ParseRule(text), batch);
          ExpectReference(GetParam(), ParseRule(text), batch, /*with_tail=*/true);
        }
      }
    }
  }
}

// Distributions at the edge of float32: nearly certain, nearly impossible, empty tails, masses rounded
// above 1.
Batch AdversarialBatch() {
  Batch batch{21, 151936, {}, {}, {}, {}, {}};
  const double certain = std::log1p(-1e-7), tiny = std::log(1e-7);
  for (const double a : {1.0, -1.0, 0.0, 0.37, -2.5}) {
    batch.Add({certain}, {certain}, a, 0);
    batch.Add({certain, tiny}, {tiny, certain}, a, 0);
    batch.Add({tiny, certain}, {certain, tiny}, a, 0);
    batch.Add({-80, -1e-7}, {-1e-7, -80}, a, 0);
    batch.Add({-1e-7, -80, -80}, {-80, -80, -1e-7}, a, 1e-9);
    batch.Add({0}, {0}, a, 0);  // all mass on one token
    batch.Add({0, -20}, {-20, 0}, a, 0);
    batch.Add({std::log(0.6), std::log(0.4000001)}, {std::log(0.5000001), std::log(0.5)}, a,
              0);                                                                     // mass above 1
    batch.Add({std::log(0.5), std::log(0.3)}, {std::log(0.6), std::log(0.4)}, a, 0);  // pi has lost the tail
    batch.Add({std::log(0.6), std::log(0.4)}, {std::log(0.5), std::log(0.3)}, a, 0.01);  // mu has none
    batch.Add(std::vector<double>(20, std::log(1e-3)), std::vector<double>(20, std::log(1e-2)), a, 1e-4);
    batch.Add(std::vector<double>(21, std::log(1.0 / 21)), std::vector<double>(21, -8), a, 1e-4);
    batch.Add({}, {}, a, 0);  // no support recorded
  }
  return batch;
}

TEST_P(DecideTest, AgreesWithTheReferenceOnEveryWindowAndWeight) {
  const Batch batch = RandomBatch(11, 500, 20, 100, 1.5, 0.8);
  for (const std::string_view window : kNamesOf<RatioWindow>) {
    for (const std::string_view weight : kNamesOf<Weight>) {
      const std::string text = fmt::format("clip window={} weight={} epsilon=2 clip_high=3", window, weight);
      ExpectReference(GetParam(), ParseRule(text), batch);
    }
  }
}

TEST_P(DecideTest, AgreesWithTheReferenceOnAdversarialTokens) {
  for (const std::string_view name : TokenPresets()) {
    ExpectReference(GetParam(), PresetRule(name), AdversarialBatch());
    Batch whole = RandomBatch(7, 100, 8, 8, 2, 1);  // the support is the vocabulary
    ExpectReference(GetParam(), PresetRule(name), whole);
  }
}

TEST_P(DecideTest, AgreesWithTheReferenceWhereOnePolicyHasAllButGivenATokenUp) {
  Batch batch{3, 1000, {}, {}, {}, {}, {}};
  for (const double gone : {-80.0, -90.0, -120.0, -700.0, -9000.0}) {
    for (const double advantage : {1.0, -1.0}) {
      batch.Add({-6.8, -1.0, -2.0}, {gone, -1.1, -2.0}, advantage, 1e-4);
      batch.Add({-1.0, -6.8, -2.0}, {-1.1, gone, -2.0}, advantage, 1e-4);
      batch.Add({-1.0, gone, -2.0}, {-1.1, -6.8, -2.0}, advantage, 1e-4);
    }
  }
  for (const std::string_view name : TokenPresets()) ExpectReference(GetParam(), PresetRule(name), batch);
}

TEST_P(DecideTest, ReproducesTheGoldenCases) {
  const auto cases = GoldenCases();
  ASSERT_GE(cases.size(), 100u);
  for (const std::string_view name : PresetNames()) {
    for (const Json& one : cases) {
      Batch batch{static_cast<int>(one["ids"].size()), one["vocab"], {}, {}, {}, {}, {}};
      batch.Add(one["behaviour"], one["policy"], one["advantage"], one["tail_square"]);
      const Results results = Decide(GetParam(), PresetRule(name), batch);
      const auto found = one["expect"].find(std::string(name));
      if (found == one["expect"].end()) continue;  // tests/python/rule_truth.py has its truth
      const Json& expected = *found;
      ASSERT_NEAR(results.ratio[0], expected["ratio"], 2e-6 * expected["ratio"].get<double>());
      ASSERT_NEAR(results.divergence[0], expected["divergence"], 2e-6 * (1 + results.divergence[0]));
      ASSERT_NEAR(results.direction[0], expected["direction"], 2e-6 * (1 + results.ratio[0]));
      if (!expected["keep"].is_null()) {
        ASSERT_EQ((results.flags[0] & kKept) != 0, expected["keep"].get<bool>()) << name;
      }
    }
  }
}

TEST_P(DecideTest, TheDualClipMasksWhatIsLoweredFromFarAbove) {
  Batch batch{2, 100, {}, {}, {}, {}, {}};
  for (const double a : {-1.0, 1.0, 0.0}) {
    batch.Add({-3, -2}, {-1.8, -2}, a, 0);  // ratio 3.3
    batch.Add({-3, -2}, {-2.0, -2}, a, 0);  // 2.7
  }
  for (const char* rule : {"clip-dual", "none dual_clip=3"}) {
    const Results results = Decide(GetParam(), ParseRule(rule), batch);
    EXPECT_EQ(results.flags[0] & (kKept | kOutside | kDisagrees), kOutside) << rule;
    EXPECT_TRUE(results.flags[1] & kKept) << rule;  // lowered from above: the ratio mask lets it pass
    EXPECT_TRUE(results.flags[4] & results.flags[5] & kKept) << rule;
  }
}

TEST_P(DecideTest, AcceptsAnEmptyBatchAndManyTokens) {
  const MaskRule rule = PresetRule("predictive-kl-aggregated");
  EXPECT_TRUE(Decide(GetParam(), rule, Batch{21, 100, {}, {}, {}, {}, {}}).flags.empty());
  ExpectReference(GetParam(), rule, RandomBatch(8, 5000, 20, 40, 1, 0.5));
  ExpectReference(GetParam(), rule, RandomBatch(9, 100, 150, 200, 1, 0.5));
  ExpectReference(GetParam(), rule, RandomBatch(10, 70, 300, 400, 1, 0.5));
}

TEST_P(DecideTest, FlagsTheRatioCapAndTheClampedMass) {
  MaskRule rule = PresetRule("none");
  rule.ratio_cap = 1.5;
  Batch batch{2, 100, {}, {}, {}, {}, {}};
  batch.Add({-1, -2}, {-0.5, -2}, 1, 0);
  batch.Add({-1, -2}, {-0.9, -2}, 1, 0);
  batch.Add({std::log(0.6), std::log(0.4001)}, {-1, -2}, 1, 0);
  const Results results = Decide(GetParam(), rule, batch);
  EXPECT_TRUE(results.flags[0] & kCapped);
  EXPECT_NEAR(results.ratio[0], std::exp(0.5), 1e-6);  // the ratio itself is reported uncut
  EXPECT_FALSE(results.flags[1] & kCapped);
  EXPECT_FALSE(results.flags[1] & kMassClamped);
  EXPECT_TRUE(results.flags[2] & kMassClamped);
}

}  // namespace
}  // namespace augur
