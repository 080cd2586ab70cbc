// Configurations from files and command lines.
//
//   const RlConfig config = ReadRlConfig("recipes/quickstart.yaml", {"train.steps=20", "mask=clip"});
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>

#include "config/config.h"
#include "config/settings.h"

namespace augur {

// The file's settings, then the overrides "a.b=value", checked. Throws Error naming the key and "file:line"
// (or the override): an unknown key, a wrong type, a value out of range, values that do not fit together. An
// empty run.dir becomes runs/ and the file's name.
RlConfig ReadRlConfig(const std::filesystem::path& file, std::span<const std::string> overrides = {});
SftConfig ReadSftConfig(const std::filesystem::path& file, std::span<const std::string> overrides = {});

// The rules between fields. `settings` tells where each value came from.
void CheckConfig(const RlConfig& config, const Settings& settings, const std::string& file);
void CheckConfig(const SftConfig& config, const Settings& settings, const std::string& file);

}  // namespace augur
