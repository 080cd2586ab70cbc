#include "kernels/no_cuda.h"
#include "kernels/swiglu.h"

namespace augur {

template <typename T>
void SwigluForwardCuda(int64_t, int64_t, const T*, T*, uint8_t*, float*, void*) {
  ThrowNoCuda("SwiGLU");
}

template <typename T>
void SwigluBackwardCuda(int64_t, int64_t, const T*, const T*, T*, void*) {
  ThrowNoCuda("SwiGLU");
}

#define AUGUR_INSTANTIATE(T)                                                                   \
  template void SwigluForwardCuda<T>(int64_t, int64_t, const T*, T*, uint8_t*, float*, void*); \
  template void SwigluBackwardCuda<T>(int64_t, int64_t, const T*, const T*, T*, void*);
AUGUR_INSTANTIATE(float)
AUGUR_INSTANTIATE(BFloat16)

}  // namespace augur
