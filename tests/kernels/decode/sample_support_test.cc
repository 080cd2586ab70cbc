// Sampling with support capture against a float64 reference that sorts.
#include "kernels/decode/sample_support.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <set>

#include "kernels/isa.h"

namespace augur {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class SampleSupport : public IsaTest {};
INSTANTIATE_TEST_SUITE_P(EachIsa, SampleSupport, testing::ValuesIn(kIsas), NameOfIsa);

struct Drawn {
  std::vector<int32_t> tokens, support_ids;
  std::vector<float> logprobs, support_logprobs;
  std::vector<uint8_t> finite;
};

Drawn Sample(const std::vector<float>& logits, const std::vector<SampleDraw>& draws,
             SampleSettings settings) {
  if (settings.stride == 0) settings.stride = settings.vocab_size;
  const size_t count = draws.size(), columns = settings.columns();
  Drawn drawn{std::vector<int32_t>(count), std::vector<int32_t>(count * columns), std::vector<float>(count),
              std::vector<float>(count * columns), std::vector<uint8_t>(count)};
  SampleSupportCpu(logits.data(), draws.data(), static_cast<int64_t>(count), settings,
                   {drawn.tokens.data(), drawn.logprobs.data(), drawn.support_ids.data(),
                    drawn.support_logprobs.data(), drawn.finite.data()});
  return drawn;
}

std::vector<SampleDraw> Draws(int count, uint64_t seed, bool one_row = true) {
  std::vector<SampleDraw> draws;
  for (int i = 0; i < count; ++i) draws.push_back(MakeSampleDraw(one_row ? 0 : i, seed, 7, i, 3));
  return draws;
}

// What each token's log-prob is, and the ids by falling likelihood with ties by rising id.
struct Reference {
  Reference(const float* logits, int64_t vocab, double temperature) : logprobs(vocab), order(vocab) {
    double most = -kInfinity, total = 0;
    for (int64_t i = 0; i < vocab; ++i) most = std::max(most, logits[i] / temperature);
    for (int64_t i = 0; i < vocab; ++i) total += std::exp(logits[i] / temperature - most);
    for (int64_t i = 0; i < vocab; ++i) logprobs[i] = logits[i] / temperature - most - std::log(total);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  }
  std::vector<double> logprobs;
  std::vector<int32_t> order;
};

void ExpectMatches(const std::vector<float>& logits, const SampleSettings& settings,
                   const std::vector<SampleDraw>& draws) {
  const Drawn drawn = Sample(logits, draws, settings);
  const int64_t stride = settings.stride == 0 ? settings.vocab_size : settings.stride;
  for (size_t d = 0; d < draws.size(); ++d) {
    const Reference truth(logits.data() + draws[d].row * stride, settings.vocab_size,
                          settings.temperature == 0 ? 1 : settings.temperature);
    const int32_t token = drawn.tokens[d];
    ASSERT_TRUE(drawn.finite[d]);
    ASSERT_GE(token, 0);
    ASSERT_LT(token, settings.vocab_size);
    ASSERT_GT(truth.logprobs[token], -kInfinity);
    EXPECT_NEAR(drawn.logprobs[d], truth.logprobs[token], 2e-5);
    std::vector<int32_t> expected = {token};
    for (int k = 0; k < settings.support; ++k) {
      const int32_t id = truth.order[k];
      if (id != token && truth.logprobs[id] > -kInfinity) expected.push_back(id);
    }
    expected.resize(settings.columns(), -1);
    const auto ids = drawn.support_ids.begin() + d * settings.columns();
    EXPECT_EQ(std::vector<int32_t>(ids, ids + settings.columns()), expected);
    for (int64_t c = 0; c < settings.columns(); ++c) {
      const float logprob = drawn.support_logprobs[d * settings.columns() + c];
      if (expected[c] < 0) {
        EXPECT_EQ(logprob, -kInfinity);
      } else {
        EXPECT_NEAR(logprob, truth.logprobs[expected[c]], 2e-5);
      }
    }
  }
}

using Fill = std::function<float(std::mt19937_64&)>;

std::vector<float> Logits(int64_t count, const Fill& fill, uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  std::vector<float> logits(count);
  for (float& logit : logits) logit = fill(random);
  return logits;
}

float Normal(std::mt19937_64& random) { return std::normal_distribution<float>(0, 3)(random); }

TEST_P(SampleSupport, EqualsASortedReferenceOnAllKindsOfLogits) {
  const std::vector<Fill> kinds = {
      Normal,
      [](std::mt19937_64& r) { return static_cast<float>(r() % 4); },               // tied
      [](std::mt19937_64&) { return 1.5f; },                                        // all tied
      [](std::mt19937_64& r) { return r() % 2000 == 0 ? 60.0f : Normal(r); },       // peaked
      [](std::mt19937_64& r) { return r() % 3 == 0 ? -kInfinity : Normal(r); },     // -inf among them
      [](std::mt19937_64& r) { return r() % 5000 == 0 ? Normal(r) : -kInfinity; },  // hardly any
      [](std::mt19937_64& r) { return 1e4f + Normal(r); },                          // large
  };
  for (const int64_t vocab : {5, 97, 1024, 1025, 20000}) {
    for (size_t kind = 0; kind < kinds.size(); ++kind) {
      std::vector<float> logits = Logits(3 * vocab, kinds[kind], kind + 1);
      for (int row = 0; row < 3; ++row) logits[row * vocab + vocab / 2] = 2;  // no row without a finite logit
      for (const float temperature : {1.0f, 0.6f, 1.7f, 0.0f}) {
        for (const int support : {0, 1, 4, 1000}) {
          if (support >= vocab) continue;
          SCOPED_TRACE(testing::Message() << vocab << " kind " << kind << " T " << temperature);
          SampleSettings settings;
          settings.vocab_size = vocab;
          settings.temperature = temperature;
          settings.support = support;
          std::vector<SampleDraw> draws = Draws(3, vocab + kind, false);
          draws.push_back(MakeSampleDraw(2, 9, 9, 9, 9));  // a second draw from the last row
          ExpectMatches(logits, settings, draws);
        }
      }
    }
  }
}

TEST_P(SampleSupport, RecordsTheSampledTokenInsideAndOutsideTheTopK) {
  const std::vector<float> logits = Logits(300, [](auto& r) { return Normal(r) / 3; });
  SampleSettings settings;
  settings.vocab_size = 300;
  settings.support = 20;
  const Drawn drawn = Sample(logits, Draws(500, 4), settings);
  int inside = 0;
  for (int d = 0; d < 500; ++d) inside += drawn.support_ids[d * 21 + 20] < 0;
  EXPECT_GT(inside, 50);
  EXPECT_LT(inside, 450);
  ExpectMatches(logits, settings, Draws(500, 4));
}

// Pearson's statistic over cells with an expectation of at least five, as standard deviations above its mean.
double ChiSquareExcess(const std::vector<int>& counts, const std::vector<double>& probabilities, int draws) {
  double statistic = 0, rest_expected = 0, rest_count = 0;
  int cells = 0;
  auto add = [&](double count, double expected) {
    statistic += (count - expected) * (count - expected) / expected;
    ++cells;
  };
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = draws * probabilities[i];
    if (expected >= 5) {
      add(counts[i], expected);
    } else {
      rest_expected += expected;
      rest_count += counts[i];
    }
  }
  if (rest_expected > 0) add(rest_count, rest_expected);
  return (statistic - (cells - 1)) / std::sqrt(2.0 * (cells - 1));
}

TEST_P(SampleSupport, FrequenciesFollowTheDistribution) {
  for (const int64_t vocab : {40, 3000}) {
    const std::vector<float> logits = Logits(vocab, Normal, 5);
    SampleSettings settings;
    settings.vocab_size = vocab;
    settings.temperature = 1.3f;
    const int count = 100000;
    const Drawn drawn = Sample(logits, Draws(count, 11), settings);
    const Reference truth(logits.data(), vocab, 1.3);
    std::vector<int> counts(vocab);
    std::vector<double> probabilities;
    for (const double logprob : truth.logprobs) probabilities.push_back(std::exp(logprob));
    for (const int32_t token : drawn.tokens) ++counts[token];
    EXPECT_LT(std::fabs(ChiSquareExcess(counts, probabilities, count)), 4.0);
  }
}

TEST_P(SampleSupport, ADrawDependsOnItsFourKeysAlone) {
  const std::vector<float> logits = Logits(500, [](auto& r) { return Normal(r) / 10; });
  SampleSettings settings;
  settings.vocab_size = 500;
  std::set<int32_t> tokens;
  for (uint32_t i = 0; i < 2; ++i) {
    for (const SampleDraw& draw : {MakeSampleDraw(0, 1 + i, 2, 3, 4), MakeSampleDraw(0, 1, 2 + i, 3, 4),
                                   MakeSampleDraw(0, 1, 2, 3 + i, 4), MakeSampleDraw(0, 1, 2, 3, 4 + i)}) {
      tokens.insert(Sample(logits, {draw}, settings).tokens[0]);
    }
  }
  EXPECT_EQ(tokens.size(), 5u);
}

TEST_P(SampleSupport, NeverSamplesPaddingRowsNorLooksAtThem) {
  std::vector<float> logits = Logits(4 * 128, Normal);
  for (int row = 0; row < 4; ++row) {
    for (int i = 100; i < 128; ++i) logits[row * 128 + i] = i % 2 == 0 ? NAN : kInfinity;
  }
  SampleSettings settings;
  settings.vocab_size = 100;
  settings.stride = 128;
  settings.support = 99;
  ExpectMatches(logits, settings, Draws(4, 3, false));
}

TEST_P(SampleSupport, SaysWhichRowsAreNotFiniteAndDrawsFromTheOthers) {
  std::vector<float> logits = Logits(5 * 50, Normal);
  logits[1 * 50 + 13] = NAN;
  logits[2 * 50 + 49] = kInfinity;
  std::fill_n(logits.begin() + 3 * 50, 50, -kInfinity);
  SampleSettings settings;
  settings.vocab_size = 50;
  settings.support = 3;
  const Drawn drawn = Sample(logits, Draws(5, 3, false), settings);
  EXPECT_EQ(drawn.finite, (std::vector<uint8_t>{1, 0, 0, 0, 1}));
  for (int row : {1, 2, 3}) {
    EXPECT_EQ(drawn.tokens[row], -1);
    EXPECT_TRUE(std::isnan(drawn.logprobs[row]));
    for (int c = 0; c < 4; ++c) EXPECT_EQ(drawn.support_ids[row * 4 + c], -1);
  }
}

TEST_P(SampleSupport, GreedyTakesTheMostLikelyWithTheLowestId) {
  std::vector<float> logits(2000, 0.0f);
  logits[700] = logits[1500] = 3;
  SampleSettings settings;
  settings.vocab_size = 2000;
  settings.temperature = 0;
  EXPECT_EQ(Sample(logits, Draws(1, 1), settings).tokens[0], 700);
}

// The tokens that truncations leave, by a sort of everything.
std::set<int32_t> Kept(const Reference& truth, const SampleSettings& settings) {
  size_t count = truth.order.size();
  if (settings.top_k > 0) count = std::min<size_t>(count, settings.top_k);
  double mass = 0, cumulative = 0;
  for (size_t i = 0; i < count; ++i) mass += std::exp(truth.logprobs[truth.order[i]]);
  std::set<int32_t> kept;
  for (size_t i = 0; i < count; ++i) {
    const double probability = std::exp(truth.logprobs[truth.order[i]]);
    if (i > 0 && settings.top_p < 1 && cumulative >= settings.top_p * mass) break;
    if (i > 0 && probability < settings.min_p * std::exp(truth.logprobs[truth.order[0]])) break;
    cumulative += probability;
    kept.insert(truth.order[i]);
  }
  return kept;
}

TEST_P(SampleSupport, TruncationsLeaveWhatASortLeavesAndKeepItsProportions) {
  const std::vector<float> logits = Logits(400, [](auto& r) { return Normal(r) / 2; });
  for (const auto& [top_k, top_p, min_p] : std::vector<std::tuple<int, float, float>>{{7, 1, 0},
                                                                                      {0, 0.7f, 0},
                                                                                      {0, 1, 0.1f},
                                                                                      {30, 0.6f, 0},
                                                                                      {30, 0.9f, 0.05f},
                                                                                      {30, 1, 0.2f},
                                                                                      {1, 1, 0},
                                                                                      {0, 1e-6f, 0}}) {
    SampleSettings settings;
    settings.vocab_size = 400;
    settings.temperature = 0.9f;
    settings.top_k = top_k;
    settings.top_p = top_p;
    settings.min_p = min_p;
    settings.support = 5;
    const Reference truth(logits.data(), 400, 0.9);
    const std::set<int32_t> kept = Kept(truth, settings);
    const int count = 20000;
    const Drawn drawn = Sample(logits, Draws(count, 21), settings);
    std::vector<int> counts(400);
    for (const int32_t token : drawn.tokens) ++counts[token];
    double mass = 0;
    for (const int32_t id : kept) mass += std::exp(truth.logprobs[id]);
    std::vector<double> probabilities(400);
    for (const int32_t id : kept) probabilities[id] = std::exp(truth.logprobs[id]) / mass;
    for (int id = 0; id < 400; ++id) EXPECT_EQ(counts[id] > 0 && kept.count(id) == 0, false) << id;
    EXPECT_LT(kept.size() > 1 ? std::fabs(ChiSquareExcess(counts, probabilities, count)) : 0.0, 4.0);
    ExpectMatches(logits, settings, Draws(50, 2));  // log-probs and support stay those of the whole
  }
}

TEST_P(SampleSupport, ReadsBfloat16AsItReadsItsFloats) {
  const std::vector<float> wide = Logits(3000, Normal);
  std::vector<BFloat16> narrow;
  std::vector<float> rounded;
  for (const float x : wide) {
    narrow.push_back(BFloat16::From(x));
    rounded.push_back(narrow.back());
  }
  SampleSettings settings;
  settings.vocab_size = settings.stride = 3000;
  const Drawn expected = Sample(rounded, Draws(100, 1), settings);
  std::vector<int32_t> tokens(100);
  std::vector<float> logprobs(100);
  std::vector<uint8_t> finite(100);
  SampleSupportCpu(narrow.data(), Draws(100, 1).data(), 100, settings,
                   {tokens.data(), logprobs.data(), nullptr, nullptr, finite.data()});
  EXPECT_EQ(tokens, expected.tokens);
  EXPECT_EQ(logprobs, expected.logprobs);
}

}  // namespace
}  // namespace augur
