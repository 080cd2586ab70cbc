// At the border to Python: an augur::Error becomes a ValueError.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include "base/error.h"

namespace augur {

template <typename F>
auto ReportingValueErrors(F f) {
  try {
    return f();
  } catch (const Error& error) {
    TORCH_CHECK_VALUE(false, error.what());
  }
}

// With the tensor's GPU as the current one: the dispatcher leaves that to operators.
template <typename F>
auto ReportingValueErrors(const at::Tensor& on, F f) {
  c10::OptionalDeviceGuard guard;
  if (on.is_cuda()) guard.reset_device(on.device());
  return ReportingValueErrors(f);
}

}  // namespace augur
