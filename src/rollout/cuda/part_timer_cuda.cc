#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime.h>

#include "rollout/part_timer.h"

namespace augur {
namespace {

// An event that a graph records again at every replay, where it was recorded during the capture.
class TimedEvent {
 public:
  TimedEvent() { C10_CUDA_CHECK(cudaEventCreate(&event_)); }
  ~TimedEvent() { cudaEventDestroy(event_); }
  TimedEvent(const TimedEvent&) = delete;
  TimedEvent& operator=(const TimedEvent&) = delete;

  void Record(cudaStream_t stream, bool capturing) {
    const unsigned flags = capturing ? cudaEventRecordExternal : cudaEventRecordDefault;
    C10_CUDA_CHECK(cudaEventRecordWithFlags(event_, stream, flags));
  }
  double SecondsUntil(const TimedEvent& later) const {
    float milliseconds = 0;
    C10_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, event_, later.event_));
    return milliseconds * 1e-3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

class CudaPartTimer : public PartTimer {
 public:
  void BeginStep(int64_t sequences) override {
    sequences_ = sequences;
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    stream_ = c10::cuda::getCurrentCUDAStream().stream();
    C10_CUDA_CHECK(cudaStreamIsCapturing(stream_, &status));
    capturing_ = status != cudaStreamCaptureStatusNone;
    marks_.clear();
    Record("");
    open_ = true;
  }
  void Mark(const char* part) override {
    if (open_) Record(part);
  }
  // Of several graphs for as many sequences the one captured last is that of the longest contexts, and the
  // last to be replayed.
  void EndStep() override {
    open_ = false;
    if ((!capturing_ && from_graph_) || sequences_ < most_sequences_) return;
    from_graph_ = capturing_;
    most_sequences_ = sequences_;
    step_ = std::move(marks_);
  }
  std::vector<PartTime> Times() override {
    C10_CUDA_CHECK(cudaDeviceSynchronize());
    std::vector<PartTime> parts;
    for (size_t i = 1; i < step_.size(); ++i) {
      AddPart(step_[i].part, step_[i - 1].event->SecondsUntil(*step_[i].event), &parts);
    }
    return parts;
  }

 private:
  struct EndOfPart {
    const char* part;
    std::shared_ptr<TimedEvent> event;
  };
  void Record(const char* part) {
    marks_.push_back({part, std::make_shared<TimedEvent>()});
    if (capturing_) kept_.push_back(marks_.back().event);
    marks_.back().event->Record(stream_, capturing_);
  }

  cudaStream_t stream_ = nullptr;
  int64_t sequences_ = 0, most_sequences_ = 0;
  bool open_ = false, capturing_ = false, from_graph_ = false;
  std::vector<EndOfPart> marks_, step_;
  std::vector<std::shared_ptr<TimedEvent>> kept_;  // graphs hold them
};

}  // namespace

std::unique_ptr<PartTimer> MakeCudaPartTimer() { return std::make_unique<CudaPartTimer>(); }

}  // namespace augur
