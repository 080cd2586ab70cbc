// Work that overlaps with this thread's: on another thread and, on a GPU, on a stream of its own.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace augur {

class OverlapWorker {
 public:
  explicit OverlapWorker(c10::Device device);
  ~OverlapWorker();  // waits for what was started
  OverlapWorker(const OverlapWorker&) = delete;
  OverlapWorker& operator=(const OverlapWorker&) = delete;

  // Waits for what is queued on the device and for work started before, then starts `work`. When the future
  // is ready, so is what the work queued on the device.
  template <typename Work>
  std::future<std::invoke_result_t<Work>> Start(Work work) {
    const auto task = std::make_shared<std::packaged_task<std::invoke_result_t<Work>()>>(
        [stream = stream_, work = std::move(work)] {
          auto result = work();
          if (stream) stream->synchronize();
          return result;
        });
    Post([task] { (*task)(); });
    return task->get_future();
  }

 private:
  struct Worker;
  void Post(std::function<void()> work);

  std::optional<c10::Stream>
      stream_;                      // one for all, so that they use the same cached memory; none on the CPU
  std::shared_ptr<Worker> worker_;  // from the first work on
};

}  // namespace augur
