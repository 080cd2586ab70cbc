// Weights to a Hugging Face directory.
#pragma once

#include <cstdint>
#include <filesystem>

#include "model/layer_store.h"
#include "model/model.h"

namespace augur {

// Largest weights file written; a bigger model is split, with model.safetensors.index.json. transformers' own
// default of an earlier day, which every reader takes.
inline constexpr int64_t kShardBytes = 5'000'000'000;

// Writes config.json and the weights in the model's dtype, so that transformers loads equal tensors. Every
// file appears complete or not at all, config.json last; weights files of an earlier save that are no part of
// this one are removed. The directory is made where absent.
//
// Of a model whose parts are in `store` every rank calls it and the first writes; the parts of one file are
// gathered at a time.
void SaveModel(const Model& model, const std::filesystem::path& directory, int64_t shard_bytes = kShardBytes,
               LayerStore* store = nullptr);

// Copies tokenizer, chat template and generation settings, whichever of them `from` has.
void CopyTokenizerFiles(const std::filesystem::path& model, const std::filesystem::path& to);

}  // namespace augur
