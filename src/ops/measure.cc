#include "ops/measure.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>

namespace augur {
namespace {

void Synchronize(c10::Device device) {
  if (device.is_cpu()) return;
  c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(std::max<int>(device.index(), 0));
}

// A field of /proc/self/status in bytes, e.g. VmHWM.
int64_t ProcessMemory(const std::string& field) {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    int64_t kilobytes = 0;
    if (word == field + ":" && status >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

int64_t PeakOnCpu(const std::function<void()>& call) {
  malloc_trim(0);  // what earlier calls freed shall not serve this one unseen
  std::ofstream("/proc/self/clear_refs") << "5";  // resets VmHWM
  const int64_t before = ProcessMemory("VmRSS");
  call();
  return ProcessMemory("VmHWM") - before;
}

int64_t PeakOnDevice(c10::Device device, const std::function<void()>& call) {
  constexpr auto kAggregate = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto index = static_cast<c10::DeviceIndex>(std::max<int>(device.index(), 0));
  c10::DeviceAllocator* allocator = at::getDeviceAllocator(device.type());
  allocator->resetPeakStats(index);
  const int64_t before = allocator->getDeviceStats(index).allocated_bytes[kAggregate].current;
  call();
  Synchronize(device);
  return allocator->getDeviceStats(index).allocated_bytes[kAggregate].peak - before;
}

double SecondsOf(c10::Device device, const std::function<void()>& call) {
  Synchronize(device);
  const auto start = std::chrono::steady_clock::now();
  call();
  Synchronize(device);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

std::vector<Measured> MeasureInTurns(c10::Device device, int rounds,
                                     const std::vector<std::function<void()>>& contestants) {
  std::vector<Measured> measured(contestants.size());
  std::vector<std::vector<double>> seconds(contestants.size());
  for (size_t i = 0; i < contestants.size(); ++i) {
    measured[i].peak_bytes =
        device.is_cpu() ? PeakOnCpu(contestants[i]) : PeakOnDevice(device, contestants[i]);
  }
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < contestants.size(); ++i) {
      seconds[i].push_back(SecondsOf(device, contestants[i]));
    }
  }
  for (size_t i = 0; i < contestants.size(); ++i) {
    std::ranges::nth_element(seconds[i], seconds[i].begin() + rounds / 2);
    measured[i].seconds = seconds[i][rounds / 2];
  }
  return measured;
}

}  // namespace augur
