#include "kernels/no_cuda.h"
#include "kernels/rotary.h"

namespace augur {

template <typename T>
void RotaryForwardCuda(const RotaryInput<T>&, T*, const PagedKv<T>*, void*) {
  ThrowNoCuda("rotation");
}

int64_t RotaryPartialRows() { return 0; }

template <typename T>
void RotaryBackwardCuda(const RotaryInput<T>&, const RotaryGradients<T>&, T*, float*, float*, void*) {
  ThrowNoCuda("rotation");
}

#define AUGUR_INSTANTIATE(T)                                                                                \
  template void RotaryForwardCuda<T>(const RotaryInput<T>&, T*, const PagedKv<T>*, void*);                  \
  template void RotaryBackwardCuda<T>(const RotaryInput<T>&, const RotaryGradients<T>&, T*, float*, float*, \
                                      void*);
AUGUR_INSTANTIATE(float)
AUGUR_INSTANTIATE(BFloat16)

}  // namespace augur
