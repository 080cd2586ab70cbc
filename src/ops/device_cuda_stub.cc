#include "ops/device.h"

namespace augur {

void* CurrentStream(const at::Tensor&) { return nullptr; }

}  // namespace augur
