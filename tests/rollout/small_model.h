// Random models of every family, small enough to run in milliseconds.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "model/model.h"
#include "model/rope.h"
#include "rollout/engine.h"

namespace augur {

struct Family {
  std::string name;
  std::string fields;  // of config.json, in addition to those of every family
};

inline std::vector<Family> SmallFamilies() {
  return {
      {"llama", R"("model_type":"llama","tie_word_embeddings":false)"},
      {"llama_tied_bias", R"("model_type":"llama","tie_word_embeddings":true,"attention_bias":true,
                             "mlp_bias":true)"},
      {"qwen2", R"("model_type":"qwen2","tie_word_embeddings":true)"},
      {"qwen3", R"("model_type":"qwen3","tie_word_embeddings":false,"head_dim":20)"},
      {"qwen3_moe", R"("model_type":"qwen3_moe","tie_word_embeddings":false,"head_dim":16,"num_experts":6,
                       "num_experts_per_tok":2,"moe_intermediate_size":22,"norm_topk_prob":true,
                       "decoder_sparse_step":1,"mlp_only_layers":[1])"},
      {"mistral", R"("model_type":"mistral","head_dim":10,"sliding_window":null)"},
      {"olmo2", R"("model_type":"olmo2","attention_bias":true)"},
      {"smollm3", R"("model_type":"smollm3","no_rope_layer_interval":2)"},
  };
}

inline constexpr int64_t kVocab = 61;

inline Model SmallModel(const Family& family, uint64_t seed = 1, int64_t positions = 128) {
  const std::string json =
      R"({"vocab_size":61,"hidden_size":36,"intermediate_size":44,"num_hidden_layers":3,
          "num_attention_heads":6,"num_key_value_heads":2,"rms_norm_eps":1e-6,"rope_theta":10000.0,
          "hidden_act":"silu","max_position_embeddings":)" +
      std::to_string(positions) + "," + family.fields + "}";
  const ModelConfig config = ParseModelConfig(ParseJson(json, "test"), "test");
  Model model = AllocateModel(config, at::kFloat, at::kCPU);
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  for (const at::Tensor& parameter : Parameters(model)) {
    float* value = parameter.data_ptr<float>();
    const bool norm = parameter.dim() == 1 && parameter.size(0) != 44 * 2;
    for (int64_t i = 0; i < parameter.numel(); ++i) value[i] = (norm ? 1.0f : 0.0f) + 0.2f * normal(random);
  }
  return model;
}

inline std::vector<GenerateRequest> RandomRequests(const std::vector<int>& lengths, uint64_t seed = 3) {
  std::mt19937_64 random(seed);
  std::vector<GenerateRequest> requests;
  for (const int length : lengths) {
    GenerateRequest& request = requests.emplace_back();
    request.key = 100 + requests.size();
    request.where = "prompt " + std::to_string(requests.size());
    for (int i = 0; i < length; ++i) request.tokens.push_back(static_cast<int32_t>(random() % kVocab));
  }
  return requests;
}

// Tokens and supports are the same; log-probs are within `tolerance`, by default the same bits.
inline void ExpectSameRollouts(const std::vector<Rollout>& a, const std::vector<Rollout>& b,
                               float tolerance = 0) {
  ASSERT_EQ(a.size(), b.size());
  auto largest_difference = [](const std::vector<float>& x, const std::vector<float>& y) {
    float largest = 0;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (x[i] != y[i]) largest = std::max(largest, std::fabs(x[i] - y[i]));
    }
    return largest;
  };
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].finish, b[i].finish) << "rollout " << i;
    EXPECT_EQ(a[i].tokens, b[i].tokens) << "rollout " << i;
    EXPECT_EQ(a[i].support.ids, b[i].support.ids) << "rollout " << i;
    EXPECT_EQ(a[i].support.logprobs.size(), b[i].support.logprobs.size()) << "rollout " << i;
    EXPECT_LE(largest_difference(a[i].logprobs, b[i].logprobs), tolerance) << "rollout " << i;
    EXPECT_LE(largest_difference(a[i].support.logprobs, b[i].support.logprobs), tolerance) << "rollout " << i;
  }
}

}  // namespace augur
