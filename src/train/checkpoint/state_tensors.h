// The optimizer's tensors in a checkpoint: tensors.safetensors, or one file of each rank that has a part of
// them, tensors-R-of-N.safetensors. There a tensor's part is flat, and its name ends with where it begins:
// "master.model.norm.weight@128". What N ranks wrote, any number reads.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "formats/safetensors.h"
#include "train/step/optimizer.h"

namespace augur {

// Writes what is this rank's to write.
void SaveStateTensors(const Optimizer& optimizer, const std::filesystem::path& directory);

// Fills the tensors of optimizer.State(). Throws Error where the files do not fit them.
void LoadStateTensors(const Optimizer& optimizer, const std::filesystem::path& directory);

// What a checkpoint's directory holds, whoever wrote it.
class StateFiles {
 public:
  explicit StateFiles(const std::filesystem::path& directory);

  bool Has(const std::string& name) const { return parts_.contains(name); }
  size_t size() const { return parts_.size(); }
  // Elements [begin, begin + count) of the tensor, as they are stored. Throws Error where it is missing, not
  // of this type, or not of `whole` elements in all.
  std::vector<std::byte> Read(const std::string& name, DType dtype, int64_t begin, int64_t count,
                              int64_t whole) const;

 private:
  struct Part {
    int64_t begin = 0;
    TensorView view;
  };
  void Add(const SafetensorsFile& file);

  std::filesystem::path directory_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, std::vector<Part>> parts_;
};

}  // namespace augur
