#include "train/run/memory_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "base/error.h"
#include "base/memory.h"
#include "model/model.h"

namespace augur {

void RequireTrainingMemory(const std::string& path, const ModelConfig& model, Precision precision,
                           const OptimizerFields& optimizer, at::Device device) {
  if (!device.is_cpu()) return;
  double parameters = 0;
  for (const at::Tensor& tensor : Parameters(AllocateModel(model, at::kBFloat16, at::Device(at::kMeta)))) {
    parameters += static_cast<double>(tensor.numel());
  }
  // fp32: weights 4, gradients 4; otherwise weights 2, master weights 4, gradients 2. And two states.
  const double each = 8 + (optimizer.optimizer_dtype == StateDtype::kBf16 ? 4 : 8);
  const double gib = parameters * each / (1 << 30), most = static_cast<double>(MostMemory()) / (1 << 30);
  if (gib <= most) return;
  throw Error(path,
              fmt::format("training its {:.2f} billion parameters in {} takes at least {:.1f} GiB, and there "
                          "are {:.1f}",
                          parameters / 1e9, kNamesOf<Precision>[static_cast<size_t>(precision)], gib, most),
              "take a smaller model, optimizer_dtype bf16, or a machine with more memory");
}

std::string UpdateMemoryRemedy(const std::string& section, const OptimizerFields& optimizer) {
  std::vector<std::string> ways;
  if (optimizer.micro_tokens > 1) {
    ways.push_back(fmt::format("{}.micro_tokens={}", section, optimizer.micro_tokens / 2));
  }
  if (optimizer.checkpoint_activations != ActivationCheckpoint::kFull) {
    ways.push_back(fmt::format("{}.checkpoint_activations=full", section));
  }
  if (optimizer.optimizer_dtype == StateDtype::kFp32) {
    ways.push_back(fmt::format("{}.optimizer_dtype=bf16", section));
  }
  ways.emplace_back("a smaller model");
  return fmt::format("try {}", fmt::join(ways, ", "));
}

}  // namespace augur
