#include "ops/device.h"

namespace augur {

void* CurrentStream(const at::Tensor&) { return nullptr; }

bool HasFp8Units(const at::Tensor&) { return false; }

bool BuiltWithCuda() { return false; }

std::string GpuDescription() { return "not looked for by a build without CUDA"; }

}  // namespace augur
