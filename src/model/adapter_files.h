// Adapters as PEFT keeps them: a directory with adapter_config.json and adapter_model.safetensors.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "model/adapter.h"
#include "model/model.h"

namespace augur {

inline constexpr const char* kAdapterConfig = "adapter_config.json";

// Whether the directory holds an adapter and no model of its own.
bool IsAdapter(const std::filesystem::path& directory);

// The base that an adapter's directory names: a directory, or a model of the hub (base/hub.h). Throws Error
// where it is neither.
std::string BaseModel(const std::filesystem::path& directory);

// The model's directory: this one, or of an adapter the base it names. Throws Error where that is not there.
std::filesystem::path BaseDirectory(const std::filesystem::path& directory);

// Gives the model the directory's adapters, merged, and the modules it trains whole. Reads safetensors alone:
// a pickle could run code. Throws Error naming what does not fit the model, or what PEFT can do and this
// cannot.
void ReadAdapter(const std::filesystem::path& directory, Model* model);

// What such adapters are in numbers; nothing where there is no adapter_model.safetensors.
AdapterSize SizeOfAdapter(const std::filesystem::path& directory, const ModelConfig& config);

// Writes the model's adapters; `base` is the directory of the weights they belong to, which peft loads with
// them. The files appear complete or not at all.
void SaveAdapter(const Model& model, const std::filesystem::path& base,
                 const std::filesystem::path& directory);

// Copies an adapter's two files to a directory, which is made where absent.
void CopyAdapter(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace augur
