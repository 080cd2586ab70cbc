#include "kernels/no_cuda.h"
#include "rollout/backend.h"
#include "rollout/part_timer.h"

namespace augur {

std::unique_ptr<Backend> MakeCudaBackend(const Model&, const EngineOptions&) { ThrowNoCuda("rollout"); }
std::unique_ptr<PartTimer> MakeCudaPartTimer() { ThrowNoCuda("rollout"); }

}  // namespace augur
