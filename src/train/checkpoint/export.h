// A Hugging Face directory from a checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "formats/dtype.h"

namespace augur {

struct Export {
  std::filesystem::path checkpoint;
  int64_t step = 0;
  DType dtype = DType::kF32;
  bool has_tokenizer = false;
  bool adapter = false;  // an adapter was written, not a model
};

// The checkpoint that `path` is, or the one where the run `path` stands. Throws Error where it is neither, or
// no checkpoint is whole; warns of damaged ones.
std::filesystem::path CheckpointOf(const std::filesystem::path& path);

// Writes the master weights, rounded to `dtype` (by default what the run computes in, so that the last
// checkpoint of a run gives its model/), with configuration and tokenizer, to `out`, which must be new or
// empty. The tokenizer is that of the run's model.path, while it is there, or of its model/. Of a run with
// adapters those are written, in PEFT's format, or with `merge` the model that they and their base make.
Export ExportCheckpoint(const std::filesystem::path& checkpoint, const std::filesystem::path& out,
                        std::optional<DType> dtype, bool merge);

}  // namespace augur
