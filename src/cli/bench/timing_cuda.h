// The CUDA half of timing.h.
#pragma once

#include <functional>

namespace augur {

double CudaSecondsPerCall(int calls, const std::function<void(int)>& call);

}  // namespace augur
