#include "ops/large_product.h"

namespace augur {

bool LargeProductCuda(const at::Tensor&, const at::Tensor&, const at::Tensor&, bool) { return false; }

}  // namespace augur
