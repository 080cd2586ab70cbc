#include "kernels/no_cuda.h"
#include "kernels/rms_norm.h"

namespace augur {

template <typename T>
void RmsNormForwardCuda(const RmsNormRows<T>&, void*) {
  ThrowNoCuda("RMSNorm");
}

int64_t RmsNormPartialRows(int64_t rows) { return rows; }

template <typename T>
void RmsNormBackwardCuda(int64_t, int64_t, const T*, const T*, const float*, const T*, const T*, T*, float*,
                         float*, void*) {
  ThrowNoCuda("RMSNorm");
}

#define AUGUR_INSTANTIATE(T)                                                                         \
  template void RmsNormForwardCuda<T>(const RmsNormRows<T>&, void*);                                 \
  template void RmsNormBackwardCuda<T>(int64_t, int64_t, const T*, const T*, const float*, const T*, \
                                       const T*, T*, float*, float*, void*);
AUGUR_INSTANTIATE(float)
AUGUR_INSTANTIATE(BFloat16)

}  // namespace augur
