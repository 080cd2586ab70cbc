// A prompt that several sequences begin with is computed once: the same hidden states and gradients.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "model/forward.h"

namespace augur {
namespace {

constexpr const char* kDense = R"("model_type":"qwen3")";
constexpr const char* kSparse =
    R"("model_type":"qwen3_moe","num_experts":6,"num_experts_per_tok":2,"moe_intermediate_size":16,
       "norm_topk_prob":true,"decoder_sparse_step":1,"mlp_only_layers":[])";
constexpr const char* kAllHeadsNorm = R"("model_type":"olmo2")";

Model TinyModel(const char* family, at::ScalarType dtype, at::Device device) {
  const at::NoGradGuard no_grad;
  const std::string json =
      std::string(
          R"({"vocab_size":61,"hidden_size":32,"intermediate_size":48,"num_hidden_layers":2,"head_dim":8,
          "num_attention_heads":4,"num_key_value_heads":2,"rms_norm_eps":1e-6,"rope_theta":10000.0,
          "hidden_act":"silu","max_position_embeddings":64,"tie_word_embeddings":false,)") +
      family + "}";
  Model model = AllocateModel(ParseModelConfig(ParseJson(json, "test"), "test"), dtype, device);
  for (at::Tensor parameter : Parameters(model)) parameter.normal_(0, 0.3).requires_grad_(true);
  return model;
}

struct Sequences {
  std::vector<std::vector<int32_t>> tokens;
  std::vector<Prefix> prefixes;
  std::vector<int64_t> packed, shared;  // rows of the tokens behind the prefixes, without and with sharing

  // All but the second have the same prompt, whose last token each keeps for itself.
  explicit Sequences(const std::vector<int>& lengths) {
    constexpr int kPrompt = 9;
    int64_t row = 0, own = 0;
    for (size_t s = 0; s < lengths.size(); ++s) {
      const bool other = s == 1;
      std::vector<int32_t> sequence;
      for (int i = 0; i < kPrompt; ++i) sequence.push_back((i * 7 + (other ? 5 : 3)) % 61);
      for (int i = 0; i < lengths[s]; ++i) sequence.push_back((i * 11 + 13 * static_cast<int>(s)) % 61);
      const bool shares = s > 0 && !other;
      prefixes.push_back(shares ? Prefix{0, kPrompt - 1} : Prefix{});
      for (size_t i = kPrompt - 1; i < sequence.size(); ++i) {
        packed.push_back(row + static_cast<int64_t>(i));
        shared.push_back(own + static_cast<int64_t>(i) - prefixes.back().length);
      }
      row += static_cast<int64_t>(sequence.size());
      own += static_cast<int64_t>(sequence.size()) - prefixes.back().length;
      tokens.push_back(std::move(sequence));
    }
  }
};

// Hidden states of the rows, and the gradients of a weighted sum of them.
std::vector<at::Tensor> Results(const Model& model, PackedBatch batch, const std::vector<int64_t>& rows,
                                const ForwardOptions& options) {
  batch.rows = at::tensor(rows).to(model.embedding.device());
  const at::Tensor hidden = Forward(model, batch, options).hidden.to(at::kFloat);
  const at::Tensor weights = (at::arange(hidden.numel(), hidden.options()) * 0.7).sin().view(hidden.sizes());
  std::vector<at::Tensor> results = torch::autograd::grad({(hidden * weights).sum()}, Parameters(model), {},
                                                          {}, false, /*allow_unused=*/true);
  std::erase_if(results, [](const at::Tensor& gradient) { return !gradient.defined(); });  // the head
  results.push_back(hidden.detach());
  return results;
}

void ExpectSharingChangesNothing(const char* family, at::ScalarType dtype, at::Device device,
                                 const ForwardOptions& options, double tolerance) {
  const Model model = TinyModel(family, dtype, device);
  const Sequences sequences({5, 3, 1, 12, 4});
  const PackedBatch shared = PackSequences(sequences.tokens, device, sequences.prefixes);
  EXPECT_EQ(shared.tokens.size(0), 5 * 9 + 25 - 3 * 8);
  EXPECT_EQ(shared.positions.size(0), 5 * 9 + 25);
  const auto got = Results(model, shared, sequences.shared, options);
  const auto truth = Results(model, PackSequences(sequences.tokens, device), sequences.packed, options);
  ASSERT_EQ(got.size(), truth.size());
  for (size_t i = 0; i < truth.size(); ++i) {
    const double error = (got[i] - truth[i]).norm().item<double>() / truth[i].norm().item<double>();
    EXPECT_LT(error, tolerance) << "result " << i;
  }
}

class SharedPrefixesTest : public testing::TestWithParam<const char*> {};

TEST_P(SharedPrefixesTest, GivesTheSameStatesAndGradients) {
  for (const bool checkpointed : {false, true}) {
    ExpectSharingChangesNothing(GetParam(), at::kFloat, at::kCPU, {.checkpoint_layers = checkpointed}, 1e-5);
  }
}

constexpr const char* kNames[] = {"Dense", "Sparse", "AllHeadsNorm"};
INSTANTIATE_TEST_SUITE_P(Families, SharedPrefixesTest, testing::Values(kDense, kSparse, kAllHeadsNorm),
                         [](const auto& info) { return kNames[info.index]; });

TEST(SharedPrefixesCuda, GivesTheSameStatesAndGradients) {
  ExpectSharingChangesNothing(kDense, at::kFloat, at::kCUDA, {}, 1e-4);
  ExpectSharingChangesNothing(kDense, at::kBFloat16, at::kCUDA, {}, 3e-2);
  ExpectSharingChangesNothing(kDense, at::kBFloat16, at::kCUDA, {.recompute_cheap = true}, 3e-2);
}

}  // namespace
}  // namespace augur
