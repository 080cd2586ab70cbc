#include "train/run/overlap.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace augur {

struct OverlapWorker::Worker {
  std::mutex mutex;
  std::condition_variable changed;
  std::function<void()> work;  // empty: idle

  void WaitIdle(std::unique_lock<std::mutex>& lock) {
    changed.wait(lock, [this] { return work == nullptr; });
  }

  [[noreturn]] void Loop(const std::optional<c10::Stream>& stream) {
    const c10::OptionalStreamGuard guard(stream);
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return work != nullptr; });
      lock.unlock();
      work();
      lock.lock();
      work = nullptr;
      changed.notify_all();
    }
  }
};

OverlapWorker::OverlapWorker(c10::Device device) {
  if (device.is_cpu()) return;
  const c10::Device indexed(device.type(), std::max<c10::DeviceIndex>(device.index(), 0));
  stream_ =
      c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(indexed, /*isHighPriority=*/true);
}

OverlapWorker::~OverlapWorker() {
  if (worker_ == nullptr) return;
  std::unique_lock<std::mutex> lock(worker_->mutex);
  worker_->WaitIdle(lock);
}

void OverlapWorker::Post(std::function<void()> work) {
  if (stream_) {
    c10::impl::VirtualGuardImpl(stream_->device_type()).synchronizeDevice(stream_->device_index());
  }
  if (worker_ == nullptr) {
    worker_ = std::make_shared<Worker>();
    // Never ends: what torch keeps for a thread does not survive the thread's end on every machine.
    std::thread([worker = worker_, stream = stream_] { worker->Loop(stream); }).detach();
  }
  std::unique_lock<std::mutex> lock(worker_->mutex);
  worker_->WaitIdle(lock);
  worker_->work = std::move(work);
  worker_->changed.notify_all();
}

}  // namespace augur
