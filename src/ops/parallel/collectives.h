// Collectives over a process group that torch.distributed registered, by its name: Gloo and NCCL alike.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace augur {

// The element-wise "sum" or "max" over all ranks of the group, the same on each of them.
at::Tensor AllReduce(const at::Tensor& tensor, const std::string& operation, const std::string& group);

// How many ranks the group has.
int64_t GroupSize(const std::string& group);

}  // namespace augur
