#include "kernels/no_cuda.h"
#include "rollout/backend.h"

namespace augur {

std::unique_ptr<Backend> MakeCudaBackend(const Model&, const EngineOptions&) { ThrowNoCuda("rollout"); }

}  // namespace augur
