// The optimizer's tensors in a checkpoint's file.
#pragma once

#include <filesystem>
#include <vector>

#include "train/step/optimizer.h"

namespace augur {

void SaveStateTensors(const std::vector<StateTensor>& state, const std::filesystem::path& path);

// Fills the tensors. Throws Error where the file's do not fit them.
void LoadStateTensors(const std::vector<StateTensor>& state, const std::filesystem::path& path);

}  // namespace augur
