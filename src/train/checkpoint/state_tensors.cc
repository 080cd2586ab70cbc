#include "train/checkpoint/state_tensors.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <fmt/format.h>

#include <cstring>

#include "base/error.h"
#include "formats/safetensors.h"
#include "train/checkpoint/checkpoint.h"

namespace augur {
namespace {

DType StoredType(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBFloat16 ? DType::kBF16 : DType::kF32;
}

}  // namespace

void SaveStateTensors(const std::vector<StateTensor>& state, const std::filesystem::path& path) {
  std::vector<TensorSource> sources;
  for (const StateTensor& entry : state) {
    sources.push_back({entry.name, StoredType(entry.tensor), entry.tensor.sizes().vec(),
                       [tensor = entry.tensor](const ByteSink& sink) {
                         const at::Tensor here = tensor.detach().cpu().contiguous();
                         sink({static_cast<const std::byte*>(here.const_data_ptr()), here.nbytes()});
                       }});
  }
  WriteSafetensors(path, std::move(sources), {});
}

void LoadStateTensors(const std::vector<StateTensor>& state, const std::filesystem::path& path) {
  const at::NoGradGuard no_grad;
  const SafetensorsFile file(path);
  if (file.tensors().size() != state.size()) {
    throw Error(path.string(),
                fmt::format("holds {} tensors, the model needs {}", file.tensors().size(), state.size()),
                kOtherCheckpoint);
  }
  for (const StateTensor& entry : state) {
    const auto found = file.tensors().find(entry.name);
    if (found == file.tensors().end() || found->second.shape != entry.tensor.sizes().vec() ||
        found->second.dtype != StoredType(entry.tensor)) {
      throw Error(path.string(),
                  fmt::format("tensor \"{}\" is missing or of another shape or type", entry.name),
                  kOtherCheckpoint);
    }
    const at::Tensor here =
        at::empty_like(entry.tensor, entry.tensor.options().device(at::kCPU), at::MemoryFormat::Contiguous);
    std::memcpy(here.mutable_data_ptr(), found->second.bytes.data(), found->second.bytes.size());
    entry.tensor.copy_(here);
  }
}

}  // namespace augur
