#include "kernels/adamw.h"
#include "kernels/no_cuda.h"

namespace augur {

void AdamWCuda(const AdamWArrays&, const AdamWSettings&, void*) { ThrowNoCuda("AdamW"); }

}  // namespace augur
