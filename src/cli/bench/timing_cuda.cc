#include "cli/bench/timing_cuda.h"

#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <vector>

namespace augur {

double CudaSecondsPerCall(int calls, const std::function<void(int)>& call) {
  constexpr int kReplays = 21;
  const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
  const c10::cuda::CUDAStreamGuard guard(stream);
  for (int i = 0; i < 3; ++i) call(i);  // warm up outside the graph: handles, plans, caches
  stream.synchronize();
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  for (int i = 0; i < calls; ++i) call(i);
  graph.capture_end();
  std::vector<double> seconds;
  for (int r = 0; r < kReplays; ++r) {
    at::cuda::CUDAEvent start(cudaEventDefault), end(cudaEventDefault);
    start.record(stream);
    graph.replay();
    end.record(stream);
    end.synchronize();
    seconds.push_back(start.elapsed_time(end) * 1e-3 / calls);
  }
  std::ranges::nth_element(seconds, seconds.begin() + kReplays / 2);
  return seconds[kReplays / 2];
}

}  // namespace augur
