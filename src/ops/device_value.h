// One number on its way from the GPU to the host while the GPU works on.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>

namespace augur {

class DeviceValue {
 public:
  // value [1] int32, complete when the work queued so far is done.
  explicit DeviceValue(const at::Tensor& value) : host_(value) {
    if (!value.is_cuda()) return;
    host_ = at::empty({1}, value.options().device(at::kCPU).pinned_memory(true));
    host_.copy_(value, /*non_blocking=*/true);
    event_.emplace(c10::DeviceType::CUDA);
    event_->record(c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getStream(value.device()));
  }

  // Waits for it, but for no work queued after it.
  int32_t Get() const {
    if (event_) event_->synchronize();
    return *host_.const_data_ptr<int32_t>();
  }

 private:
  at::Tensor host_;
  std::optional<c10::Event> event_;
};

}  // namespace augur
