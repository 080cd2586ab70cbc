#include "ops/parallel/collectives.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

namespace augur {

at::Tensor AllReduce(const at::Tensor& tensor, const std::string& operation, const std::string& group) {
  static const auto reduce = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow("_c10d_functional::all_reduce", "")
                                 .typed<at::Tensor(const at::Tensor&, std::string, std::string)>();
  static const auto wait = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("_c10d_functional::wait_tensor", "")
                               .typed<at::Tensor(const at::Tensor&)>();
  return wait.call(reduce.call(tensor.contiguous(), operation, group));
}

int64_t GroupSize(const std::string& group) { return c10d::resolve_process_group(group)->getSize(); }

}  // namespace augur
