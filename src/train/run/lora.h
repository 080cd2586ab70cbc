// The adapters that a run begins with.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "config/config.h"
#include "model/layer_store.h"
#include "model/model.h"

namespace augur {

// Whether the run trains adapters.
bool UsesLora(const LoraSection& lora);

// The models whose weights stay as they are while the run trains: the base of adapters, with the adapter it
// begins from, and the reference of a KL penalty.
std::vector<std::string> FrozenModels(const ModelSection& model, const LoraSection& lora,
                                      bool with_reference);

// A model.path that is an adapter's directory becomes lora.adapter, and its base the model.
void TakeAdapterDirectory(ModelSection* model, LoraSection* lora);

// Gives the model new adapters, or those of lora.adapter; nothing where there are to be none. Where the
// trainer's products are in FP8, so is the base.
void StartLora(const LoraSection& lora, Precision precision, uint64_t seed, Model* model);

// What a run leaves behind: RUN/adapter, or RUN/model where every weight was trained; with the tokenizer.
// Every rank calls it, and the first writes. `store` has the model's parts; null: they are whole.
void SaveResult(const Model& model, const std::filesystem::path& base, const std::filesystem::path& run,
                LayerStore* store);

// "model:  RUN/model", for the end of a run.
std::string DescribeResult(const std::filesystem::path& run);

}  // namespace augur
