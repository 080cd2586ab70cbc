#include "model/adapter.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/where.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/json.h"
#include "model/adapter_files.h"

namespace augur {
namespace {

Model AdaptedModel(const std::string& family, const LoraOptions& options = {3, 6, {"all-linear"}, {}}) {
  const at::NoGradGuard no_grad;
  const std::string json =
      R"({"vocab_size":61,"hidden_size":32,"intermediate_size":48,"num_hidden_layers":2,"head_dim":8,
          "num_attention_heads":4,"num_key_value_heads":2,"rms_norm_eps":1e-6,"rope_theta":10000.0,
          "hidden_act":"silu","max_position_embeddings":64,"tie_word_embeddings":false,)" +
      family + "}";
  Model model = AllocateModel(ParseModelConfig(ParseJson(json, "test"), "test"), at::kFloat, at::kCPU);
  for (at::Tensor parameter : Parameters(model)) parameter.normal_(0, 0.1);
  AddAdapters(options, 1, "test", &model);
  for (const LayerWeights& layer : model.layers) {
    for (const ModuleWeights& module : layer) {
      for (at::Tensor b :
           module.adapters.empty() ? std::vector<at::Tensor>() : std::vector{module.adapters.front().b}) {
        b.normal_(0, 0.5);
      }
    }
  }
  MergeAdapters(model);
  return model;
}

// Rounded to e4m3 by torch, the largest of each output channel scaled to the format's largest.
at::Tensor Rounded(const at::Tensor& x) {
  const at::Tensor scale = x.abs().amax({-1}, true) / 448;
  return (x / scale).to(at::kFloat8_e4m3fn).to(at::kFloat) * scale;
}

at::Tensor Merged(const ModuleWeights& module, const at::Tensor& base) {
  at::Tensor sum = base.clone();
  for (const LowRank& low : module.adapters) {
    sum.narrow(-2, low.begin_row, low.b.size(-2)).add_(at::matmul(low.b, low.a), low.scale);
  }
  return sum;
}

class AdapterTest : public testing::TestWithParam<const char*> {};

TEST_P(AdapterTest, AdaptersAreMergedIntoTheRoundedBase) {
  const at::NoGradGuard no_grad;
  Model model = AdaptedModel(GetParam());
  const Model before = model;  // the bases as they were
  RoundBaseToFp8(&model);
  size_t adapted = 0;
  for (size_t i = 0; i < model.layers.size(); ++i) {
    for (size_t slot = 0; slot < kSlots; ++slot) {
      const ModuleWeights& module = model.layers[i][slot];
      if (module.adapters.empty()) continue;
      ++adapted;
      EXPECT_EQ(module.base.scalar_type(), at::kFloat8_e4m3fn);
      const at::Tensor base = Rounded(before.layers[i][slot].base);
      EXPECT_TRUE(at::allclose(module.weight, Merged(module, base), 1e-6, 1e-7));
      {
        const BaseWeights alone(model);
        EXPECT_TRUE(at::allclose(alone.model().layers[i][slot].weight, base, 1e-6, 1e-7));
      }
      EXPECT_TRUE(at::allclose(module.weight, Merged(module, base), 1e-6, 1e-7));
    }
  }
  EXPECT_GE(adapted, 8);
}

AdapterSize SizeOf(const Model& model) {
  AdapterSize size;
  for (const LayerWeights& layer : model.layers) {
    for (const ModuleWeights& module : layer) {
      if (module.base.defined()) size.base += module.base.numel();
      for (const LowRank& low : module.adapters) size.trained += low.a.numel() + low.b.numel();
    }
  }
  for (const WholeModule& module : model.lora->whole) {
    size.trained += module.weight.numel();
    size.base += module.base.numel();
  }
  return size;
}

TEST_P(AdapterTest, SizesAreKnownBeforehandAndFromTheFile) {
  const std::vector<std::string> norm = {"norm"};
  for (const LoraOptions& options :
       {LoraOptions{3, 6, {"all-linear"}, norm}, LoraOptions{2, 6, {"q_proj"}, {}},
        LoraOptions{2, 6, {"down_proj", "k_proj"}, {"lm_head", "embed_tokens"}}}) {
    const Model model = AdaptedModel(GetParam(), options);
    const AdapterSize is = SizeOf(model), before = SizeOfAdapters(options, model.config, "test");
    EXPECT_EQ(before.trained, is.trained);
    EXPECT_EQ(before.base, is.base);
    const auto folder = std::filesystem::path(testing::TempDir()) / "adapter_size";
    SaveAdapter(model, "", folder);
    const AdapterSize stored = SizeOfAdapter(folder, model.config);
    EXPECT_EQ(stored.trained, is.trained);
    EXPECT_EQ(stored.base, is.base);
    std::filesystem::remove_all(folder);
  }
}

// Modules with a rank or a scale of their own, as adapters of others have them.
TEST_P(AdapterTest, EveryModuleKeepsItsRankAndScaleInTheFiles) {
  const at::NoGradGuard no_grad;
  Model model = AdaptedModel(GetParam());
  double scale = 0.3;
  for (LayerWeights& layer : model.layers) {
    for (ModuleWeights& module : layer) {
      for (LowRank& low : module.adapters) {
        const int64_t rank = scale > 1 ? 5 : 3;
        std::vector<int64_t> a = low.a.sizes().vec(), b = low.b.sizes().vec();
        a[a.size() - 2] = b.back() = rank;
        low.a = at::randn(a);
        low.b = at::randn(b);
        low.scale = scale;
        scale += 0.15;
      }
    }
  }
  MergeAdapters(model);
  const auto folder = std::filesystem::path(testing::TempDir()) / "adapter_ranks";
  SaveAdapter(model, "", folder);
  Model read = AllocateModel(model.config, at::kFloat, at::kCPU);
  for (size_t i = 0; i < model.layers.size(); ++i) {
    for (size_t slot = 0; slot < kSlots; ++slot) {
      if (const ModuleWeights& module = model.layers[i][slot]; module.weight.defined())
        read.layers[i][slot].weight.copy_(module.base.defined() ? module.base : module.weight);
    }
  }
  ReadAdapter(folder, &read);
  EXPECT_EQ(read.lora->rank, 3);
  for (size_t i = 0; i < model.layers.size(); ++i) {
    for (size_t slot = 0; slot < kSlots; ++slot) {
      const ModuleWeights &is = read.layers[i][slot], &was = model.layers[i][slot];
      ASSERT_EQ(is.adapters.size(), was.adapters.size());
      for (size_t k = 0; k < is.adapters.size(); ++k) {
        EXPECT_EQ(is.adapters[k].name, was.adapters[k].name);
        EXPECT_NEAR(is.adapters[k].scale, was.adapters[k].scale, 1e-9) << i << " " << is.adapters[k].name;
      }
      if (is.weight.defined()) {
        EXPECT_TRUE(at::allclose(is.weight, was.weight, 1e-5, 1e-6)) << i << " " << slot;
      }
    }
  }
  std::filesystem::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(Families, AdapterTest,
                         testing::Values(R"("model_type":"qwen3")",
                                         R"("model_type":"qwen3_moe","num_experts":20,"num_experts_per_tok":2,
                                            "moe_intermediate_size":16,"norm_topk_prob":true,
                                            "decoder_sparse_step":1,"mlp_only_layers":[])"),
                         [](const auto& info) { return info.index == 0 ? "Dense" : "Sparse"; });

}  // namespace
}  // namespace augur
