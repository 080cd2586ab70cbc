#include "family/layer_table.h"

namespace augur {
namespace {

ModuleSpec Norm(Slot slot, std::string name, std::string_view gguf, int64_t width) {
  return {.slot = slot, .role = Role::kNorm, .parts = {{std::move(name), gguf, width}}};
}

void AddAttention(const ModelConfig& c, std::vector<ModuleSpec>* table) {
  table->push_back({.slot = kQkv,
                    .role = Role::kColumnLinear,
                    .parts = {{"self_attn.q_proj", "attn_q", c.q_width()},
                              {"self_attn.k_proj", "attn_k", c.kv_width()},
                              {"self_attn.v_proj", "attn_v", c.kv_width()}},
                    .in = c.hidden_size,
                    .bias = c.qkv_bias});
  table->push_back({.slot = kOut,
                    .role = Role::kRowLinear,
                    .parts = {{"self_attn.o_proj", "attn_output", c.hidden_size}},
                    .in = c.q_width(),
                    .bias = c.out_bias});
  if (c.qk_norm == QkNorm::kNone) return;
  const bool all = c.qk_norm == QkNorm::kAllHeads;
  table->push_back(Norm(kQueryNorm, "self_attn.q_norm", "attn_q_norm", all ? c.q_width() : c.head_dim));
  table->push_back(Norm(kKeyNorm, "self_attn.k_norm", "attn_k_norm", all ? c.kv_width() : c.head_dim));
}

void AddDenseMlp(const ModelConfig& c, std::vector<ModuleSpec>* table) {
  table->push_back({.slot = kGateUp,
                    .role = Role::kColumnLinear,
                    .parts = {{"mlp.gate_proj", "ffn_gate", c.intermediate_size},
                              {"mlp.up_proj", "ffn_up", c.intermediate_size}},
                    .in = c.hidden_size,
                    .bias = c.mlp_bias});
  table->push_back({.slot = kDown,
                    .role = Role::kRowLinear,
                    .parts = {{"mlp.down_proj", "ffn_down", c.hidden_size}},
                    .in = c.intermediate_size,
                    .bias = c.mlp_bias});
}

void AddExperts(const ModelConfig& c, std::vector<ModuleSpec>* table) {
  const int64_t inner = c.moe.intermediate_size;
  table->push_back({.slot = kRouter,
                    .role = Role::kRouter,
                    .parts = {{"mlp.gate", "", c.moe.experts}},
                    .in = c.hidden_size});
  table->push_back({.slot = kExpertsGateUp,
                    .role = Role::kColumnLinear,
                    .parts = {{"mlp.experts.{}.gate_proj", "", inner}, {"mlp.experts.{}.up_proj", "", inner}},
                    .in = c.hidden_size,
                    .experts = c.moe.experts});
  table->push_back({.slot = kExpertsDown,
                    .role = Role::kRowLinear,
                    .parts = {{"mlp.experts.{}.down_proj", "", c.hidden_size}},
                    .in = inner,
                    .experts = c.moe.experts});
}

}  // namespace

int64_t ModuleSpec::rows() const {
  int64_t sum = 0;
  for (const StoredModule& part : parts) sum += part.rows;
  return sum;
}

std::vector<int64_t> ModuleSpec::shape() const {
  if (role == Role::kNorm) return {rows()};
  if (experts == 0) return {rows(), in};
  return {experts, rows(), in};
}

std::vector<ModuleSpec> LayerTable(const ModelConfig& config, int64_t layer) {
  std::vector<ModuleSpec> table;
  const int64_t hidden = config.hidden_size;
  if (!config.norms_behind) table.push_back(Norm(kAttentionNorm, "input_layernorm", "attn_norm", hidden));
  AddAttention(config, &table);
  table.push_back(config.norms_behind ? Norm(kAttentionOutNorm, "post_attention_layernorm", "", hidden)
                                      : Norm(kMlpNorm, "post_attention_layernorm", "ffn_norm", hidden));
  if (config.sparse[layer]) {
    AddExperts(config, &table);
  } else {
    AddDenseMlp(config, &table);
  }
  if (config.norms_behind) table.push_back(Norm(kMlpOutNorm, "post_feedforward_layernorm", "", hidden));
  return table;
}

}  // namespace augur
