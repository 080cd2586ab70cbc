// Responses in spans, made by hand: what the model sampled and what it observed.
#include <gtest/gtest.h>

#include "model/load.h"
#include "train/step/policy_step.h"
#include "train/step/random_samples.h"

namespace augur {
namespace {

std::vector<at::Tensor> GradientOf(const TrainSample& sample) {
  const Model model = LoadModel(AUGUR_SOURCE_DIR "/models/tiny", at::kFloat, at::kCPU);
  Optimizer optimizer(model, {});
  StepLoss loss;
  loss.aggregation = Aggregation::kTokenSum;
  loss.terms.rule = PresetRule("none");
  AccumulateMinibatch(model, optimizer, {&sample, 1}, loss);
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& gradient : optimizer.gradients()) gradients.push_back(gradient.clone());
  return gradients;
}

// The recorded side of these sampled tokens alone.
RecordedSupport Rows(const RecordedSupport& all, const std::vector<int64_t>& places) {
  RecordedSupport rows{all.columns, {}, {}};
  for (const int64_t place : places) {
    const auto begin = place * all.columns, end = begin + all.columns;
    rows.ids.insert(rows.ids.end(), all.ids.begin() + begin, all.ids.begin() + end);
    rows.logprobs.insert(rows.logprobs.end(), all.logprobs.begin() + begin, all.logprobs.begin() + end);
  }
  return rows;
}

constexpr int64_t kVocab = 40;

// Three tokens sampled, three observed, three sampled.
Rollout WithObserved(const Rollout& whole) {
  Rollout mixed = whole;
  mixed.spans = {{0, 3, true, 1}, {3, 6, false, 0}, {6, 9, true, 2}};
  mixed.support = Rows(whole.support, mixed.SampledPlaces());
  return mixed;
}

TEST(Spans, AResponseInPiecesHasTheGradientOfTheWholeToTheBit) {
  const Rollout whole = RandomRollout(kVocab, 4, 9, 1);
  Rollout pieces = whole;
  pieces.spans = {{0, 2, true, 1}, {2, 3, true, 2}, {3, 9, true, 3}};
  const std::vector<at::Tensor> one = GradientOf({.rollout = &whole, .advantage = 2}),
                                three = GradientOf({.rollout = &pieces, .advantage = 2});
  ASSERT_EQ(one.size(), three.size());
  double largest = 0;
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_TRUE(one[i].equal(three[i])) << i;
    largest = std::max(largest, one[i].abs().max().item<double>());
  }
  EXPECT_GT(largest, 0);
}

TEST(Spans, ObservedTokensHaveExactlyNoGradient) {
  const Rollout mixed = WithObserved(RandomRollout(kVocab, 4, 9, 2));
  // The sampled tokens' own advantages are 0: what were left would come from observed ones.
  const TrainSample none{.rollout = &mixed, .advantage = 2, .importance = std::vector<float>(6, 0)};
  for (const at::Tensor& gradient : GradientOf(none)) EXPECT_EQ(gradient.abs().max().item<double>(), 0);
}

TEST(Spans, SampledTokensHaveTheGradientTheyWouldHaveAmongWeightlessOnes) {
  const Rollout whole = RandomRollout(kVocab, 4, 9, 3), mixed = WithObserved(whole);
  const std::vector<float> without = {1, 1, 1, 0, 0, 0, 1, 1, 1};
  const std::vector<at::Tensor> got = GradientOf({.rollout = &mixed, .advantage = 2}),
                                wanted =
                                    GradientOf({.rollout = &whole, .advantage = 2, .importance = without});
  for (size_t i = 0; i < got.size(); ++i) {
    const double scale = wanted[i].abs().max().item<double>();
    EXPECT_LE((got[i] - wanted[i]).abs().max().item<double>(), 1e-5 * scale) << i;
  }
}

}  // namespace
}  // namespace augur
