#include "cli/bench/measure.h"

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <memory>

#include "base/clock.h"
#include "model/adapter.h"

namespace augur {
namespace {

// Hears of every tensor that is allocated or freed, on any thread that works for this one.
class PeakCounter : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    const int64_t now = current_.fetch_add(bytes) + bytes;
    int64_t peak = peak_.load();
    while (now > peak && !peak_.compare_exchange_weak(peak, now)) {
    }
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t peak() const { return peak_; }

 private:
  std::atomic<int64_t> current_ = 0, peak_ = 0;
};

double SecondsOf(c10::Device device, const std::function<void()>& call) {
  Synchronize(device);
  const auto start = Clock::now();
  call();
  Synchronize(device);
  return SecondsSince(start);
}

}  // namespace

void Synchronize(c10::Device device) {
  if (device.is_cpu()) return;
  c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(std::max<int>(device.index(), 0));
}

int64_t PeakBytes(const std::function<void()>& call) {
  const auto counter = std::make_shared<PeakCounter>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, counter);
  call();
  return counter->peak();
}

std::vector<Measured> MeasureInTurns(c10::Device device, int rounds,
                                     const std::vector<std::function<void()>>& contestants) {
  std::vector<Measured> measured(contestants.size());
  std::vector<std::vector<double>> seconds(contestants.size());
  for (size_t i = 0; i < contestants.size(); ++i) {
    measured[i].peak_bytes = PeakBytes(contestants[i]);
  }
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < contestants.size(); ++i) {
      if (!device.is_cpu()) contestants[i]();
      seconds[i].push_back(SecondsOf(device, contestants[i]));
    }
  }
  for (size_t i = 0; i < contestants.size(); ++i) {
    std::ranges::nth_element(seconds[i], seconds[i].begin() + rounds / 2);
    measured[i].seconds = seconds[i][rounds / 2];
  }
  return measured;
}

void AddBenchAdapters(int64_t rank, bool fp8, Model* model) {
  if (rank == 0) return;
  LoraOptions options;
  options.rank = rank;
  options.alpha = static_cast<double>(2 * rank);
  options.modules_to_save = {"norm"};
  AddAdapters(options, 0, "--lora-rank", model);
  if (fp8) RoundBaseToFp8(model);
}

int64_t PeakMemoryBytes(c10::Device device) {
  if (!device.is_cpu()) {
    const auto stats =
        c10::getDeviceAllocator(device.type())->getDeviceStats(std::max<c10::DeviceIndex>(device.index(), 0));
    return stats.reserved_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)].peak;
  }
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

}  // namespace augur
