#include "ops/device.h"

namespace augur {

CurrentStream::CurrentStream(const at::Tensor&) {}

int GpuGeneration(const at::Tensor&) { return 0; }

bool HasFp8Units(const at::Tensor&) { return false; }

bool HasGroupedProducts(const at::Tensor&) { return false; }

bool HasFp8GroupedProducts(const at::Tensor&) { return false; }

bool BuiltWithCuda() { return false; }

bool HasUsableGpu() { return false; }

std::string GpuDescription() { return "not looked for by a build without CUDA"; }

}  // namespace augur
