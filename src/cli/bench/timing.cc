#include "cli/bench/timing.h"

#include <algorithm>
#include <vector>

#include "base/clock.h"
#include "cli/bench/timing_cuda.h"

namespace augur {

double SecondsPerCall(c10::Device device, int calls, const std::function<void(int)>& call) {
  if (device.is_cuda()) return CudaSecondsPerCall(calls, call);
  for (int i = 0; i < 3; ++i) call(i);  // warm up
  std::vector<double> seconds;
  for (int i = 0; i < calls; ++i) {
    const auto start = Clock::now();
    call(i);
    seconds.push_back(SecondsSince(start));
  }
  std::ranges::nth_element(seconds, seconds.begin() + calls / 2);
  return seconds[calls / 2];
}

}  // namespace augur
