// The engine on a GPU beside the engine on the CPU, and beside itself under other schedules.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <gtest/gtest.h>

#include "model/forward.h"
#include "model/shapes.h"
#include "rollout/engine.h"
#include "rollout/small_model.h"

namespace augur {
namespace {

// Families small enough for the CPU; those named after head sizes take the tensor cores' kernels.
std::vector<Family> CudaFamilies() {
  std::vector<Family> families = Families();
  families.push_back({"head_64", R"("model_type":"llama","tie_word_embeddings":true,"head_dim":64)"});
  families.push_back({"head_128", R"("model_type":"qwen3","tie_word_embeddings":false,"head_dim":128)"});
  // Sizes that the kernels for experts take.
  families.push_back({"experts", R"("model_type":"qwen3_moe","tie_word_embeddings":false,"head_dim":16,
                     "hidden_size":32,"num_experts":6,"num_experts_per_tok":2,"moe_intermediate_size":16,
                     "norm_topk_prob":true,"decoder_sparse_step":1,"mlp_only_layers":[1])"});
  return families;
}

Model OnGpu(const Model& from, at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  Model to = AllocateModel(from.config, dtype, at::kCUDA);
  const auto a = Parameters(from), b = Parameters(to);
  for (size_t i = 0; i < a.size(); ++i) b[i].copy_(a[i]);
  return to;
}

SamplingOptions Options(int64_t max_tokens) {
  SamplingOptions options;
  options.max_tokens = max_tokens;
  options.samples = 3;
  options.support = 5;
  options.seed = 7;
  options.end_tokens = {3};
  return options;
}

class EngineCudaTest : public testing::TestWithParam<Family> {};

TEST_P(EngineCudaTest, SamplesWhatTheCpuSamplesInFloat32) {
  const Model model = SmallModel(GetParam());
  const Model there = OnGpu(model, at::kFloat);
  const auto requests = RandomRequests({3, 17, 32, 1, 40});
  const EngineOptions fp32{.precision = RolloutPrecision::kFp32};
  ExpectSameRollouts(Engine(model, fp32).Generate(requests, Options(60)),
                     Engine(there, fp32).Generate(requests, Options(60)), 2e-4f);
}

TEST_P(EngineCudaTest, OneByOneEqualsTogetherInFloat32) {
  const Model there = OnGpu(SmallModel(GetParam()), at::kFloat);
  const auto requests = RandomRequests({3, 17, 32, 1, 40, 9, 9, 9});
  const EngineOptions fp32{.precision = RolloutPrecision::kFp32};
  EngineOptions one = fp32, few = fp32;
  one.max_batch = 1;
  few.max_batch = 5;
  const auto together = Engine(there, fp32).Generate(requests, Options(60));
  ExpectSameRollouts(together, Engine(there, one).Generate(requests, Options(60)), 2e-4f);
  ExpectSameRollouts(together, Engine(there, few).Generate(requests, Options(60)), 2e-4f);
}

TEST_P(EngineCudaTest, ARepeatedRunGivesTheSame) {
  const Model there = OnGpu(SmallModel(GetParam()), at::kBFloat16);
  const auto requests = RandomRequests({3, 17, 32, 1});
  for (const RolloutPrecision precision : {RolloutPrecision::kBf16, RolloutPrecision::kFp8}) {
    Engine engine(there, {.precision = precision});
    const auto first = engine.Generate(requests, Options(40));
    ExpectSameRollouts(first, engine.Generate(requests, Options(40)));
    engine.ReleaseMemory();
    ExpectSameRollouts(first, engine.Generate(requests, Options(40)));
    for (const Rollout& rollout : first) EXPECT_EQ(rollout.error, "");
  }
}

// Log-probs of the sampled tokens by the training forward in float32.
std::vector<float> Rescore(const Model& model, const Rollout& rollout) {
  const at::NoGradGuard no_grad;
  std::vector<std::vector<int32_t>> sequence = {rollout.prompt_tokens};
  sequence[0].insert(sequence[0].end(), rollout.tokens.begin(), rollout.tokens.end());
  const at::Tensor hidden = Forward(model, PackSequences(sequence, model.embedding.device())).hidden;
  const at::Tensor logprobs = at::log_softmax(at::linear(hidden, model.head).to(at::kFloat), -1).cpu();
  std::vector<float> out;
  for (size_t i = 0; i < rollout.tokens.size(); ++i) {
    const auto row = static_cast<int64_t>(rollout.prompt_tokens.size() + i) - 1;
    out.push_back(logprobs[row][rollout.tokens[i]].item<float>());
  }
  return out;
}

TEST_P(EngineCudaTest, RecordsTheTrainersLogProbsWithinThePrecision) {
  const Model model = SmallModel(GetParam());
  const Model there = OnGpu(model, at::kBFloat16);
  const auto requests = RandomRequests({3, 17, 32, 1});
  for (const auto& [precision, mean] :
       {std::pair(RolloutPrecision::kBf16, 0.02), {RolloutPrecision::kFp8, 0.2}}) {
    Engine engine(there, {.precision = precision});
    double difference = 0;
    size_t count = 0;
    for (const Rollout& rollout : engine.Generate(requests, Options(40))) {
      const std::vector<float> truth = Rescore(there, rollout);
      for (size_t i = 0; i < truth.size(); ++i) difference += std::fabs(truth[i] - rollout.logprobs[i]);
      count += truth.size();
    }
    EXPECT_LT(difference / static_cast<double>(count), mean) << "precision " << static_cast<int>(precision);
  }
}

TEST_P(EngineCudaTest, NewWeightsGiveWhatANewEngineGives) {
  const Model first = OnGpu(SmallModel(GetParam()), at::kBFloat16);
  const Model second = OnGpu(SmallModel(GetParam(), 2), at::kBFloat16);
  const auto requests = RandomRequests({3, 17});
  for (const RolloutPrecision precision : {RolloutPrecision::kBf16, RolloutPrecision::kFp8}) {
    const Model changing = OnGpu(SmallModel(GetParam()), at::kBFloat16);
    Engine engine(changing, {.precision = precision});
    ExpectSameRollouts(engine.Generate(requests, Options(20)),
                       Engine(first, {.precision = precision}).Generate(requests, Options(20)));
    const at::NoGradGuard no_grad;
    const auto from = Parameters(second), to = Parameters(changing);
    for (size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i]);
    engine.UpdateWeights(changing, 1);  // in place, as a trainer's
    const auto expected = Engine(second, {.precision = precision}).Generate(requests, Options(20));
    ExpectSameRollouts(engine.Generate(requests, Options(20)), expected);
    engine.UpdateWeights(second, 2);  // of another model object
    ExpectSameRollouts(engine.Generate(requests, Options(20)), expected);
  }
}

TEST_P(EngineCudaTest, PreemptionForLackOfMemoryChangesNothing) {
  const Model there = OnGpu(SmallModel(GetParam()), at::kFloat);
  const auto requests = RandomRequests({3, 17, 32, 20, 9, 28});
  const EngineOptions fp32{.precision = RolloutPrecision::kFp32};
  SamplingOptions options = Options(80);
  options.end_tokens.clear();
  const auto expected = Engine(there, fp32).Generate(requests, options);
  EngineOptions small = fp32;
  const ModelConfig& config = there.config;
  small.kv_bytes = 9 * config.layers * 2 * config.kv_width() * 32 * 4;
  Engine engine(there, small);
  ExpectSameRollouts(expected, engine.Generate(requests, options), 2e-4f);
  EXPECT_GT(engine.stats().preemptions, 0);
}

// Mean difference of log-probs over the tokens on which both agree, and how many those are: what follows a
// token on which they differ has another context.
struct Agreement {
  double difference = 0;
  int tokens = 0;
};

Agreement Compare(const std::vector<Rollout>& a, const std::vector<Rollout>& b) {
  Agreement result;
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t t = 0; t < a[i].tokens.size() && a[i].tokens[t] == b[i].tokens[t]; ++t, ++result.tokens) {
      result.difference += std::fabs(a[i].logprobs[t] - b[i].logprobs[t]);
    }
  }
  result.difference /= std::max(result.tokens, 1);
  return result;
}

// Sizes that the FP8 units take. Products and sums in another order turn a few roundings to FP8, each by a
// sixteenth; that must stay well below what rounding to FP8 does at all.
TEST(EngineCuda, Fp8AgreesWithTheCpusWithinRounding) {
  const at::NoGradGuard no_grad;
  const ModelConfig config = ParseModelConfig({{"model_type", "qwen3"},
                                               {"vocab_size", 1024},
                                               {"hidden_size", 128},
                                               {"intermediate_size", 256},
                                               {"num_hidden_layers", 3},
                                               {"num_attention_heads", 4},
                                               {"num_key_value_heads", 2},
                                               {"head_dim", 64},
                                               {"max_position_embeddings", 256},
                                               {"rms_norm_eps", 1e-6},
                                               {"rope_theta", 1e4},
                                               {"tie_word_embeddings", false}},
                                              "test");
  const Model model = NoiseModel(config, at::kBFloat16, at::kCPU, 1);
  for (const at::Tensor& parameter : Parameters(model)) {
    if (parameter.dim() == 2) parameter.mul_(6);
  }
  const Model there = OnGpu(model, at::kBFloat16);
  SamplingOptions options = Options(1);
  options.end_tokens.clear();
  const auto requests = RandomRequests({3, 17, 32, 1, 40, 9, 25, 60, 7, 31});
  const EngineOptions fp8{.precision = RolloutPrecision::kFp8};
  const auto here = Engine(model, fp8).Generate(requests, options);
  const Agreement gpu = Compare(here, Engine(there, fp8).Generate(requests, options));
  const Agreement bf16 =
      Compare(here, Engine(model, {.precision = RolloutPrecision::kBf16}).Generate(requests, options));
  ASSERT_GT(gpu.tokens, 0);
  EXPECT_GT(gpu.tokens, bf16.tokens);
  EXPECT_LT(gpu.difference, bf16.difference);
}

INSTANTIATE_TEST_SUITE_P(Families, EngineCudaTest, testing::ValuesIn(CudaFamilies()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace augur
