#include "kernels/no_cuda.h"
#include "kernels/scale.h"

namespace augur {

void ScaleCuda(void*, ElementType, int64_t, const float*, void*) { ThrowNoCuda("scaling"); }

}  // namespace augur
