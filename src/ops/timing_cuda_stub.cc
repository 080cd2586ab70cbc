#include "kernels/no_cuda.h"
#include "ops/timing_cuda.h"

namespace augur {

double CudaSecondsPerCall(int, const std::function<void(int)>&) { ThrowNoCuda("timing on the GPU"); }

}  // namespace augur
