#include "ops/timing.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "ops/timing_cuda.h"

namespace augur {

double SecondsPerCall(c10::Device device, int calls, const std::function<void(int)>& call) {
  if (device.is_cuda()) return CudaSecondsPerCall(calls, call);
  for (int i = 0; i < 3; ++i) call(i);  // warm up
  std::vector<double> seconds;
  for (int i = 0; i < calls; ++i) {
    const auto start = std::chrono::steady_clock::now();
    call(i);
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::ranges::nth_element(seconds, seconds.begin() + calls / 2);
  return seconds[calls / 2];
}

}  // namespace augur
