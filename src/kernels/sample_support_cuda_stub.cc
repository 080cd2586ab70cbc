#include "kernels/no_cuda.h"
#include "kernels/sample_support.h"

namespace augur {

int64_t SampleSupportWorkspaceBytes(int64_t, const SampleSettings&) { return 0; }

void SampleSupportCuda(ElementType, const void*, const SampleDraw*, int64_t, const SampleSettings&,
                       const SampleResults&, void*, void*) {
  ThrowNoCuda("sampling");
}

}  // namespace augur
