#include "cli/bench/timing_cuda.h"
#include "kernels/no_cuda.h"

namespace augur {

double CudaSecondsPerCall(int, const std::function<void(int)>&) { ThrowNoCuda("timing on the GPU"); }

}  // namespace augur
