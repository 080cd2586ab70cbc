#include "train/checkpoint/state_tensors.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "model/weight_cast.h"
#include "ops/parallel/ranks.h"
#include "train/checkpoint/checkpoint.h"

namespace augur {
namespace {

namespace fs = std::filesystem;

std::string ShardName(int rank, int size) {
  return fmt::format("tensors-{:05}-of-{:05}.safetensors", rank + 1, size);
}

// The file of the first rank says how many there are.
std::vector<fs::path> StateFilesOf(const fs::path& directory) {
  if (fs::exists(directory / kCheckpointTensors)) return {directory / kCheckpointTensors};
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    constexpr std::string_view kFirst = "tensors-00001-of-";
    if (!name.starts_with(kFirst)) continue;
    int size = 0;
    std::from_chars(name.data() + kFirst.size(), name.data() + name.size(), size);
    std::vector<fs::path> files;
    for (int r = 0; r < size; ++r) files.push_back(directory / ShardName(r, size));
    return files;
  }
  return {directory / kCheckpointTensors};
}

}  // namespace

void SaveStateTensors(const Optimizer& optimizer, const fs::path& directory) {
  const Ranks& ranks = optimizer.shard_ranks();
  if (!optimizer.writes_state()) return;
  std::vector<TensorSource> sources;
  for (const StateTensor& entry : optimizer.State()) {
    const bool whole = !optimizer.sharded();
    sources.push_back({whole ? entry.name : fmt::format("{}@{}", entry.name, entry.begin),
                       StoredType(entry.tensor), entry.tensor.sizes().vec(),
                       [tensor = entry.tensor](const ByteSink& sink) {
                         const at::Tensor here = tensor.detach().cpu().contiguous();
                         sink({static_cast<const std::byte*>(here.const_data_ptr()), here.nbytes()});
                       }});
  }
  WriteSafetensors(
      directory / (optimizer.sharded() ? ShardName(ranks.rank(), ranks.size()) : kCheckpointTensors),
      std::move(sources), {});
}

StateFiles::StateFiles(const fs::path& directory) : directory_(directory) {
  for (const fs::path& path : StateFilesOf(directory)) files_.emplace_back(path);
  for (const SafetensorsFile& file : files_) Add(file);
}

void StateFiles::Add(const SafetensorsFile& file) {
  for (const auto& [name, view] : file.tensors()) {
    const size_t at = name.rfind('@');
    int64_t begin = 0;
    if (at != std::string::npos) std::from_chars(name.data() + at + 1, name.data() + name.size(), begin);
    parts_[name.substr(0, at)].push_back({begin, view});
  }
}

std::vector<std::byte> StateFiles::Read(const std::string& name, DType dtype, int64_t begin, int64_t count,
                                        int64_t whole) const {
  const auto found = parts_.find(name);
  const auto width = static_cast<int64_t>(DTypeSize(dtype));
  std::vector<std::byte> bytes(static_cast<size_t>(count * width));
  int64_t filled = 0, all = 0;
  if (found != parts_.end()) {
    for (const Part& part : found->second) {
      if (part.view.dtype != dtype) break;
      const int64_t size = static_cast<int64_t>(part.view.bytes.size()) / width;
      all += size;
      const int64_t from = std::max(begin, part.begin), to = std::min(begin + count, part.begin + size);
      if (from >= to) continue;
      std::memcpy(bytes.data() + (from - begin) * width, part.view.bytes.data() + (from - part.begin) * width,
                  static_cast<size_t>((to - from) * width));
      filled += to - from;
    }
  }
  if (filled == count && all == whole) return bytes;
  throw Error(directory_.string(), fmt::format("tensor \"{}\" is missing or of another shape or type", name),
              kOtherCheckpoint);
}

void LoadStateTensors(const Optimizer& optimizer, const fs::path& directory) {
  const at::NoGradGuard no_grad;
  const StateFiles files(directory);
  const std::vector<StateTensor> state = optimizer.State();
  if (!optimizer.sharded() && files.size() != state.size()) {
    throw Error(directory.string(),
                fmt::format("holds {} tensors, the model needs {}", files.size(), state.size()),
                kOtherCheckpoint);
  }
  for (const StateTensor& entry : state) {
    const at::Tensor here =
        at::empty_like(entry.tensor, entry.tensor.options().device(at::kCPU), at::MemoryFormat::Contiguous);
    const std::vector<std::byte> bytes =
        files.Read(entry.name, StoredType(entry.tensor), entry.begin, entry.tensor.numel(), entry.whole);
    std::memcpy(here.mutable_data_ptr(), bytes.data(), bytes.size());
    entry.tensor.copy_(here);
  }
}

}  // namespace augur
