#include "ops/head/log_probs.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/where.h>
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>

#include "base/stop_signals.h"
#include "ops/compare_gradients.h"
#include "ops/head/linear_policy_loss.h"

namespace augur {
namespace {

constexpr int64_t kTokens = 37, kWidth = 24, kVocab = 53, kPadding = 7, kColumns = 5;

HeadOptions Options(double temperature, int64_t chunk = 0) {
  HeadOptions options;
  options.logits.temperature = temperature;
  options.logits.vocab_size = kVocab;
  options.logits.validate = false;
  options.chunk = chunk;
  return options;
}

// Distinct ids a row; the last column of every third row is unused.
at::Tensor MakeIds() {
  const at::Tensor first = at::randint(0, kVocab, {kTokens, 1}, at::kLong);
  at::Tensor ids = (first + at::arange(kColumns) * 7).remainder(kVocab);
  ids.select(1, kColumns - 1).masked_fill_(at::arange(kTokens).remainder(3).eq(0), -1);
  return ids.to(at::kInt);
}

Head MakeHead(at::ScalarType type) {
  return {at::randn({kTokens, kWidth}).to(type), at::randn({kVocab + kPadding, kWidth}).to(type),
          at::randn({kVocab + kPadding}).to(type)};
}

// In plain torch, with gradient.
LogProbs Reference(const Head& head, const at::Tensor& ids, double temperature) {
  const at::Tensor logits = (head.hidden.matmul(head.weight.t()) + head.bias).narrow(1, 0, kVocab);
  const at::Tensor all = at::log_softmax(logits / temperature, 1);
  const at::Tensor unused = ids.lt(0);
  const at::Tensor places = at::where(unused, ids.narrow(1, 0, 1), ids).to(at::kLong);
  const at::Tensor outside = all.exp().scatter(1, places, 0);
  return {all.gather(1, places).masked_fill(unused, -INFINITY), outside.sum(1), outside.square().sum(1),
          -(all.exp() * all).sum(1)};
}

// One number that every differentiable output enters.
at::Tensor Mixed(const LogProbs& x, const at::Tensor& ids) {
  const at::Tensor support = x.support.masked_fill(ids.lt(0), 0);
  return at::cat({(support * at::arange(1, kColumns + 1)).reshape({-1}), 3 * x.tail_mass, 2 * x.entropy});
}

void ExpectEqualPlainTorch(const HeadOptions& options, const at::Tensor& inert) {
  const double temperature = options.logits.temperature;
  const Head head = MakeHead(at::kDouble);
  const at::Tensor ids = MakeIds();
  const auto call = [&](auto function) {
    return [=](const std::vector<at::Tensor>& x) { return Mixed(function(Head{x[0], x[1], x[2]}), ids); };
  };
  ExpectEqual(call([&](const Head& h) { return ComputeLogProbs(h, ids, options, inert); }),
              call([&](const Head& h) { return Reference(h, ids, temperature); }),
              {head.hidden, head.weight, head.bias}, 1e-6);
  const LogProbs got = ComputeLogProbs(head, ids, options, inert);
  EXPECT_LT(RelativeError(got.tail_square, Reference(head, ids, temperature).tail_square), 1e-9);
  EXPECT_TRUE(got.support.eq(-INFINITY).eq(ids.lt(0)).all().item<bool>());
}

TEST(LogProbs, EqualPlainTorchInFloat64WithGradients) {
  for (const int64_t chunk : {0, 8}) {
    for (const double temperature : {1.0, 0.6}) {
      ExpectEqualPlainTorch(Options(temperature, chunk), at::Tensor());
      ExpectEqualPlainTorch(Options(temperature, chunk), at::arange(kTokens).remainder(4).eq(1));
    }
  }
}

TEST(LogProbs, BackwardStopsOnASignal) {
  const Head head = MakeHead(at::kFloat);
  head.hidden.requires_grad_();
  const at::Tensor sum = ComputeLogProbs(head, MakeIds(), Options(1, 8)).entropy.sum();
  const StopSignals signals;
  std::raise(SIGTERM);
  const StopScope scope;
  EXPECT_THROW(torch::autograd::grad({sum}, {head.hidden}), Stopped);
}

TEST(LogProbs, AreTheSameWithAndWithoutGradientAndInTheLoss) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    Head head = MakeHead(type);
    // The loss moves tokens without a gradient to the end, and on ARM the last bits of torch's products in
    // float32 depend on a row's place.
    const double largest = head.hidden.matmul(head.weight.t()).abs().max().item<double>();
    const double last_bits = type == at::kFloat ? std::ldexp(largest, -20) : 0;
    const auto same = [&](const at::Tensor& a, const at::Tensor& b) { return a.allclose(b, 0, last_bits); };
    const at::Tensor ids = MakeIds();
    const LogProbs plain = ComputeLogProbs(head, ids, Options(0.9));
    head.hidden.requires_grad_();
    const LogProbs with_gradient = ComputeLogProbs(head, ids, Options(0.9));
    RecordedTokens recorded;
    recorded.support_ids = ids;
    recorded.support_logprobs = plain.support;
    recorded.advantages = at::randn({kTokens});
    const at::Tensor inert = at::arange(kTokens).remainder(4).eq(1);
    recorded.advantages.masked_fill_(inert, 0);
    const PolicyLoss loss = ComputeLinearPolicyLoss({PresetRule("clip")}, head, recorded, Options(0.9));
    const LogProbs sorted = ComputeLogProbs(head, ids, Options(0.9), inert);
    EXPECT_TRUE(with_gradient.support.equal(plain.support));
    for (const LogProbs* other : {&with_gradient, &loss.policy, &sorted}) {
      EXPECT_TRUE(same(other->support, plain.support));
      EXPECT_TRUE(same(other->tail_mass, plain.tail_mass));
      EXPECT_TRUE(same(other->tail_square, plain.tail_square));
      EXPECT_TRUE(same(other->entropy, plain.entropy));
    }
    EXPECT_TRUE(same(loss.ratio, at::ones_like(loss.ratio)));
  }
}

TEST(LogProbs, SupportLogitsAreNotRoundedToBfloat16) {
  Head head = MakeHead(at::kBFloat16);
  head.bias = at::Tensor();
  head.weight = head.weight * 8;  // logits around 40, which bf16 rounds by 0.12
  const at::Tensor ids = MakeIds();
  const at::Tensor got = ComputeLogProbs(head, ids, Options(1)).support;
  const at::Tensor logits = head.hidden.to(at::kDouble).matmul(head.weight.to(at::kDouble).t());
  const at::Tensor places = ids.narrow(1, 0, kColumns - 1).to(at::kLong);
  const at::Tensor truth = logits.gather(1, places);
  const at::Tensor differences = (got.narrow(1, 0, kColumns - 1) - got.narrow(1, 0, 1)).to(at::kDouble);
  EXPECT_LT((differences - (truth - truth.narrow(1, 0, 1))).abs().max().item<double>(), 1e-4);
}

TEST(LogProbs, OfNoTokensAreEmpty) {
  const Head head = MakeHead(at::kFloat);
  const Head none{head.hidden.narrow(0, 0, 0), head.weight, head.bias};
  EXPECT_EQ(ComputeLogProbs(none, MakeIds().narrow(0, 0, 0), Options(1)).support.size(0), 0);
}

}  // namespace
}  // namespace augur
