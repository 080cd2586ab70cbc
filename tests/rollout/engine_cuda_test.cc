// The engine on a GPU against the engine on the CPU, and against itself under other schedules.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#ifdef AUGUR_WITH_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>
#endif

#include "family/layer_table.h"
#include "model/forward.h"
#include "model/shapes.h"
#include "rollout/backend.h"
#include "rollout/cuda/forward.h"
#include "rollout/engine.h"
#include "rollout/small_model.h"

namespace augur {
namespace {

// Families small enough for the CPU; those named after head sizes take the tensor cores' kernels.
std::vector<Family> CudaFamilies() {
  std::vector<Family> families = SmallFamilies();
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

// Sizes that FP8 units take, heads that training's own kernels take and others.
std::vector<Family> Fp8Families() {
  return {{"head_32", R"("model_type":"qwen3","tie_word_embeddings":true,"hidden_size":64,"head_dim":32,
                         "intermediate_size":96,"num_attention_heads":4)"},
          {"head_128", R"("model_type":"qwen3","tie_word_embeddings":false,"hidden_size":256,"head_dim":128,
                          "intermediate_size":640,"num_attention_heads":8,"num_key_value_heads":4)"},
          {"no_norms", R"("model_type":"llama","tie_word_embeddings":true,"hidden_size":128,"head_dim":64,
                          "intermediate_size":208,"num_attention_heads":4)"}};
}

class Fp8CudaTest : public testing::TestWithParam<Family> {
 protected:
  // The hidden states of whole sequences, as a prompt's pass of the engine computes them; or of their tokens
  // one by one, as decoding does, each alone in its sequence.
  at::Tensor Sampled(const std::vector<std::vector<int32_t>>& sequences, bool whole) {
    const at::NoGradGuard no_grad;
    const CudaWeights weights(model_, RolloutPrecision::kFp8, /*own=*/false, nullptr);
    const CudaForward forward(weights, nullptr);
    const PackedBatch packed = PackSequences(sequences, at::kCUDA);
    const int64_t tokens = packed.tokens.size(0), count = static_cast<int64_t>(sequences.size());
    const int64_t owners = whole ? count : tokens, pages = (packed.max_length - 1) / kCudaPageTokens + 1;
    const ModelConfig& c = model_.config;
    const auto ints = packed.positions.options();
    const CudaPages memory{at::zeros({c.layers, 2, owners * pages, c.kv_heads, kCudaPageTokens, c.head_dim},
                                     model_.embedding.options().requires_grad(false)),
                           {}};
    CudaBatch batch;
    batch.tokens = packed.tokens.to(at::kInt);
    batch.positions = whole ? packed.positions : at::zeros({tokens}, ints);
    batch.page_table = at::arange(owners * pages, ints).view({owners, pages});
    if (whole) {
      std::vector<int32_t> owner;
      for (int32_t s = 0; s < static_cast<int32_t>(count); ++s) {
        owner.insert(owner.end(), sequences[s].size(), s);
      }
      batch.owners = at::tensor(owner, ints.device(at::kCPU)).cuda();
      batch.cu_seqlens = packed.cu_seqlens;
      batch.longest = packed.max_length;
    }
    CudaRows rows(weights, tokens);
    return forward.Run(batch, memory, rows).clone();
  }

  at::Tensor Trained(const std::vector<std::vector<int32_t>>& sequences, ForwardOptions options) {
    const at::NoGradGuard no_grad;
    options.fp8 = true;
    return Forward(model_, PackSequences(sequences, at::kCUDA), options).hidden;
  }

  const Model model_ = OnGpu(SmallModel(GetParam()), at::kBFloat16);
};

// Attention is the same kernel for both in a prompt's pass, and exact over a single token: all that is left
// is rounded alike in rollouts and training.
// But for a token in thirty: scales multiplied in another order may send a product that lies between two
// numbers of bfloat16 to the other one, and FP8 makes more of it.
testing::AssertionResult SameBits(const at::Tensor& sampled, const at::Tensor& trained) {
  const at::Tensor other = sampled.ne(trained);
  const int64_t rows = other.any(1).sum().item<int64_t>();
  if (30 * rows <= sampled.size(0)) return testing::AssertionSuccess();
  return testing::AssertionFailure() << other.sum().item<int64_t>() << " of " << other.numel() << " in "
                                     << rows << " rows, by up to "
                                     << (sampled - trained).abs().max().item<float>();
}

TEST_P(Fp8CudaTest, RolloutsAndTrainingRoundToTheSameBits) {
  const std::vector<std::vector<int32_t>> prompts = {
      {5, 9, 33, 2, 60, 7, 7, 1, 20}, {11}, {4, 8, 15, 16, 23, 42}};
  std::vector<std::vector<int32_t>> single;
  for (int32_t t = 0; t < kVocab; ++t) single.push_back({t});
  for (const bool recompute : {false, true}) {
    const ForwardOptions options{.recompute_cheap = recompute};
    EXPECT_TRUE(SameBits(Sampled(prompts, true), Trained(prompts, options)));
    EXPECT_TRUE(SameBits(Sampled(single, false), Trained(single, options)));
  }
  EXPECT_TRUE(SameBits(Sampled(single, false), Trained(single, {.checkpoint_layers = true})));
}

INSTANTIATE_TEST_SUITE_P(Families, Fp8CudaTest, testing::ValuesIn(Fp8Families()),
                         [](const auto& info) { return info.param.name; });

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
  EXPECT_EQ(engine.stats().decoded_tokens, 18 * 79);  // none twice: those that return are prefilled
}

// In bfloat16 prompts go through other kernels than float32's, and keys and values may be FP8.
TEST_P(EngineCudaTest, PreemptedResponsesGoOnWithinThePrecision) {
  const Model there = OnGpu(SmallModel(GetParam()), at::kBFloat16);
  const auto requests = RandomRequests({3, 17, 32, 20, 9, 28, 50});
  SamplingOptions options = Options(70);
  options.end_tokens.clear();
  for (const KvPrecision kv : {KvPrecision::kBf16, KvPrecision::kFp8}) {
    EngineOptions small{.kv_precision = kv};
    const int64_t head = there.config.head_dim * (kv == KvPrecision::kFp8 ? 1 : 2) + 4;
    small.kv_bytes = 12 * there.config.layers * 2 * there.config.kv_heads * 32 * head;
    Engine engine(there, small);
    double difference = 0;
    int64_t count = 0;
    for (const Rollout& rollout : engine.Generate(requests, options)) {
      ASSERT_EQ(rollout.error, "");
      const std::vector<float> truth = Rescore(there, rollout);
      for (size_t i = 0; i < truth.size(); ++i) difference += std::fabs(truth[i] - rollout.logprobs[i]);
      count += static_cast<int64_t>(truth.size());
    }
    EXPECT_GT(engine.stats().preemptions, 0);
    EXPECT_LT(difference / static_cast<double>(count), kv == KvPrecision::kFp8 ? 0.1 : 0.02);
  }
}

std::vector<Family> WithExperts() {
  std::vector<Family> families = CudaFamilies();
  std::erase_if(families,
                [](const Family& family) { return family.fields.find("qwen3_moe") == std::string::npos; });
  return families;
}

class RoutingCudaTest : public testing::TestWithParam<Family> {};

// [tokens, layers, experts_per_token]
uint8_t ExpertOf(const Rollout& rollout, int64_t token, int64_t layer, int64_t choice) {
  const RecordedRouting& routing = rollout.routing;
  return routing.experts[(token * routing.layers + layer) * routing.experts_per_token + choice];
}

TEST_P(RoutingCudaTest, RecordsTheCpusExpertsInFloat32) {
  const Model model = SmallModel(GetParam());
  const auto requests = RandomRequests({3, 17, 32, 1, 40});
  const EngineOptions fp32{.precision = RolloutPrecision::kFp32, .record_routing = true};
  const auto here = Engine(model, fp32).Generate(requests, Options(40));
  const auto there = Engine(OnGpu(model, at::kFloat), fp32).Generate(requests, Options(40));
  ExpectSameRollouts(here, there, 2e-4f);
  for (size_t i = 0; i < here.size(); ++i) {
    const RecordedRouting &a = here[i].routing, &b = there[i].routing;
    ASSERT_EQ(a.layers, 2);
    ASSERT_EQ(a.experts.size(), b.experts.size());
    const auto prompt = static_cast<int64_t>(here[i].prompt_tokens.size());
    const auto tokens = prompt + static_cast<int64_t>(here[i].tokens.size()) - 1;
    ASSERT_EQ(static_cast<int64_t>(a.experts.size()), tokens * a.width());
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t layer = 0; layer < (t + 1 < prompt ? 1 : 2); ++layer) {  // of a prompt's last: rollout.h
        for (int64_t k = 0; k < 2; ++k) {
          EXPECT_EQ(ExpertOf(here[i], t, layer, k), ExpertOf(there[i], t, layer, k)) << i << ", token " << t;
        }
      }
    }
  }
}

// In graphs, of batches that shrink, and of responses that were preempted.
TEST_P(RoutingCudaTest, RecordsTheTrainersExpertsInLowPrecision) {
  const at::NoGradGuard no_grad;
  const Model there = OnGpu(SmallModel(GetParam()), at::kBFloat16);
  const auto requests = RandomRequests({3, 17, 32, 20, 9, 28, 50});
  SamplingOptions sampling = Options(70);
  sampling.end_tokens.clear();
  EngineOptions roomy{.record_routing = true}, tight = roomy, fp8 = roomy;
  tight.kv_bytes = 12 * there.config.layers * 2 * there.config.kv_width() * 32 * 2;
  fp8.precision = RolloutPrecision::kFp8;
  for (const EngineOptions& options : {roomy, tight, fp8}) {
    const bool rounds = options.precision == RolloutPrecision::kFp8;
    Engine engine(there, options);
    int64_t same = 0, all = 0;
    for (const Rollout& rollout : engine.Generate(requests, sampling)) {
      std::vector<std::vector<int32_t>> sequence = {rollout.prompt_tokens};
      sequence[0].insert(sequence[0].end(), rollout.tokens.begin(), rollout.tokens.end() - 1);
      const auto tokens = static_cast<int64_t>(sequence[0].size());
      const PackedBatch batch = PackSequences(sequence, there.embedding.device());
      const Routing truth = Forward(there, batch, {.fp8 = rounds}).routing;
      ASSERT_EQ(static_cast<int64_t>(rollout.routing.experts.size()), tokens * rollout.routing.width());
      for (int64_t layer = 0; layer < 2; ++layer) {
        const at::Tensor expected = truth[layer].cpu();
        for (int64_t t = 0; t < tokens; ++t, ++all) {
          same += expected[t][0].item<int64_t>() == ExpertOf(rollout, t, layer, 0) &&
                  expected[t][1].item<int64_t>() == ExpertOf(rollout, t, layer, 1);
        }
      }
    }
    // Others are near ties.
    EXPECT_GT(static_cast<double>(same), (rounds ? 0.8 : 0.95) * static_cast<double>(all));
    EXPECT_EQ(engine.stats().preemptions > 0, options.kv_bytes > 0);
  }
}

// What others held when the engine was made, and gave back since.
TEST(EngineCuda, TakesTheMemoryThatIsFreeWhenItGenerates) {
  const Model there = OnGpu(SmallModel(SmallFamilies()[0]), at::kFloat);
  const auto requests = RandomRequests(std::vector<int>(200, 30));
  SamplingOptions options = Options(90);
  options.samples = 1;
  options.end_tokens.clear();
  EngineOptions engine_options{.precision = RolloutPrecision::kFp32};
  const std::unique_ptr<Backend> backend = MakeCudaBackend(there, engine_options);
  const int64_t free = backend->FreeBytes();
  const auto wanted = static_cast<double>(200 * (4 + 2) * backend->page_bytes());
  engine_options.memory_share = wanted / (0.75 * static_cast<double>(free));
  at::Tensor held = at::empty({free / 2}, there.embedding.options().dtype(at::kByte));
  Engine engine(there, engine_options);
  const auto tight = engine.Generate(requests, options);
  EXPECT_TRUE(engine.stats().decode_batch < 200 || engine.stats().preemptions > 0);
  engine.ReleaseMemory();
  held.reset();
  ExpectSameRollouts(tight, engine.Generate(requests, options), 2e-4f);
  EXPECT_EQ(engine.stats().decode_batch, 200);
  EXPECT_EQ(engine.stats().preemptions, 0);
}

#ifdef AUGUR_WITH_CUDA
// Wherever memory runs out, also between the workspace of a step and the end of its capture, the engine
// generates as before once there is memory again.
TEST(EngineCuda, GoesOnAfterMemoryRanOut) {
  const Family wide = Fp8Families()[1];
  const Model there = OnGpu(SmallModel(wide, 1, 4096), at::kBFloat16);
  const auto requests = RandomRequests(std::vector<int>(40, 30));
  SamplingOptions options = Options(12);
  options.samples = 1;
  EngineOptions engine_options;
  engine_options.kv_bytes = int64_t{32} << 20;
  const auto expected = Engine(there, engine_options).Generate(requests, options);
  namespace allocator = c10::cuda::CUDACachingAllocator;
  size_t free = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  int failed = 0;
  for (int64_t more = 0; more < (int64_t{160} << 20); more += int64_t{4} << 20) {
    allocator::emptyCache();
    Engine engine(there, engine_options);
    const auto reserved = allocator::getDeviceStats(0).reserved_bytes[0].current;
    allocator::setMemoryFraction(static_cast<double>(reserved + more) / static_cast<double>(total), 0);
    try {
      engine.Generate(requests, options);
    } catch (const c10::OutOfMemoryError&) {
      ++failed;
    }
    allocator::setMemoryFraction(1, 0);
    ExpectSameRollouts(engine.Generate(requests, options), expected);
  }
  EXPECT_GT(failed, 0);
}
#endif

// Of what computes in FP8 nothing is kept in bfloat16, also where the engine has weights of its own.
TEST(EngineCuda, OwnFp8WeightsAreThoseOfASharedModelAndWhatIsNotRounded) {
  for (const Family& family : {Fp8Families()[1], CudaFamilies().back()}) {
    SCOPED_TRACE(family.name);
    const Model there = OnGpu(SmallModel(family), at::kBFloat16);
    const CudaWeights shared(there, RolloutPrecision::kFp8, /*own=*/false, nullptr);
    const CudaWeights own(there, RolloutPrecision::kFp8, /*own=*/true, nullptr);
    int64_t kept = static_cast<int64_t>(there.norm.nbytes() + there.head.nbytes());
    if (!there.config.tied_head) kept += static_cast<int64_t>(there.embedding.nbytes());
    for (size_t i = 0; i < there.layers.size(); ++i) {
      for (const ModuleSpec& spec : LayerTable(there.config, static_cast<int64_t>(i))) {
        const ModuleWeights& module = there.layers[i][spec.slot];
        const bool rounded =
            IsLinear(spec.role) && (spec.experts == 0 || own.layers()[i].experts_gate_up.values.defined());
        if (!rounded) kept += static_cast<int64_t>(module.weight.nbytes());
        if (module.bias.defined()) kept += static_cast<int64_t>(module.bias.nbytes());
      }
    }
    EXPECT_EQ(own.bytes() - shared.bytes(), kept);
    const auto requests = RandomRequests({3, 17});
    ExpectSameRollouts(Engine(there, {.precision = RolloutPrecision::kFp8, .own_weights = true})
                           .Generate(requests, Options(20)),
                       Engine(there, {.precision = RolloutPrecision::kFp8}).Generate(requests, Options(20)));
  }
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

// Widths for which products of up to 64 tokens have kernels of their own on Hopper GPUs.
TEST(EngineCuda, FewTokensOfAWideModelHaveTheTrainersLogProbs) {
  const ModelConfig config = ParseModelConfig({{"model_type", "qwen3"},
                                               {"vocab_size", 1024},
                                               {"hidden_size", 2560},
                                               {"intermediate_size", 640},
                                               {"num_hidden_layers", 4},
                                               {"num_attention_heads", 8},
                                               {"num_key_value_heads", 2},
                                               {"head_dim", 128},
                                               {"max_position_embeddings", 256},
                                               {"rms_norm_eps", 1e-6},
                                               {"rope_theta", 1e4},
                                               {"tie_word_embeddings", false}},
                                              "test");
  const Model there = NoiseModel(config, at::kBFloat16, at::kCUDA, 1);
  SamplingOptions options = Options(40);
  options.end_tokens.clear();
  for (const int prompts : {1, 7, 21}) {  // of three samples each
    const auto requests = RandomRequests(std::vector<int>(prompts, 20));
    Engine engine(there, {.precision = RolloutPrecision::kBf16});
    const auto rollouts = engine.Generate(requests, options);
    double difference = 0, size = 0;
    size_t count = 0;
    for (const Rollout& rollout : rollouts) {
      const std::vector<float> truth = Rescore(there, rollout);
      for (size_t i = 0; i < truth.size(); ++i) {
        difference += std::fabs(truth[i] - rollout.logprobs[i]);
        size += std::fabs(truth[i] + std::log(1024.0));
      }
      count += truth.size();
    }
    EXPECT_EQ(count, 40 * rollouts.size());
    EXPECT_LT(difference / static_cast<double>(count), 0.03);
    EXPECT_GT(size / static_cast<double>(count), 0.3);  // or another model's would be as near
    ExpectSameRollouts(rollouts, engine.Generate(requests, options));
  }
}

INSTANTIATE_TEST_SUITE_P(Families, RoutingCudaTest, testing::ValuesIn(WithExperts()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Families, EngineCudaTest, testing::ValuesIn(CudaFamilies()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace augur
