// Which modules a decoder layer has: what each is, its shape, and its names in Hugging Face directories and
// GGUF files.
//
// Whoever handles weights reads this table: allocation, loading and saving, conversion, the optimizer's list,
// the rollout copies with their FP8 rounding, adapters. A family whose layers are made of other modules than
// these needs an entry here, and whoever computes with it a line in model/layer.cc and in the two forwards of
// rollout/.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "family/config.h"

namespace augur {

// What a layer's modules are for. Query, key and value projections are one matrix, and so are gate and up:
// one product in place of three or two.
enum Slot {
  kAttentionNorm,     // before attention
  kQkv,               // attention's inputs
  kOut,               // attention's output
  kQueryNorm,         // of each head, or of all together
  kKeyNorm,           // likewise
  kAttentionOutNorm,  // of what attention adds to the residual
  kMlpNorm,           // before the MLP
  kGateUp,            // a dense layer's
  kDown,              // likewise
  kRouter,            // a sparse layer's
  kExpertsGateUp,     // of all its experts, in one tensor
  kExpertsDown,       // likewise
  kMlpOutNorm,        // of what the MLP adds to the residual
  kSlots,
};

// How a module's weight takes part in the computation, for those who round, split or adapt it.
enum class Role {
  kEmbedding,     // [vocab, hidden]: a row for each token; the head too
  kNorm,          // [width]
  kColumnLinear,  // [out, in], outputs apart from each other: may be split by outputs
  kRowLinear,  // [out, in], behind a column-wise one: may be split by inputs, and the parts' results add up
  kRouter,     // [experts, in]: small and sensitive, computed as it is
};

inline bool IsLinear(Role role) { return role == Role::kColumnLinear || role == Role::kRowLinear; }

// A module of the Hugging Face directory: some of the outputs of one of ours.
struct StoredModule {
  std::string name;  // within the layer: "self_attn.q_proj"; of an expert with {} where its number stands
  std::string_view gguf;  // within the layer of a GGUF file: "attn_q"; empty where none is converted
  int64_t rows;           // outputs, or a norm's width
};

// A module outside the layers.
struct OuterModule {
  std::string_view name;
  std::string_view gguf;
  Role role;
};
inline constexpr OuterModule kEmbeddingModule = {"model.embed_tokens", "token_embd", Role::kEmbedding};
inline constexpr OuterModule kFinalNormModule = {"model.norm", "output_norm", Role::kNorm};
inline constexpr OuterModule kHeadModule = {"lm_head", "output", Role::kEmbedding};

struct ModuleSpec {
  Slot slot;
  Role role;
  std::vector<StoredModule> parts;  // whose rows follow each other
  int64_t in = 0;                   // inputs; of a norm 0
  bool bias = false;
  int64_t experts = 0;  // so many matrices in one tensor; 0: one matrix

  int64_t rows() const;
  std::vector<int64_t> shape() const;  // of the weight: [rows], [rows, in] or [experts, rows, in]
};

// The modules of layer `layer`, in the order of the directory form.
std::vector<ModuleSpec> LayerTable(const ModelConfig& config, int64_t layer);

}  // namespace augur
