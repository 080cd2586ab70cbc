#include "kernels/no_cuda.h"
#include "kernels/quantise_rows.h"

namespace augur {

template <typename T>
void QuantiseRowsCuda(int64_t, int64_t, const T*, uint8_t*, float*, void*) {
  ThrowNoCuda("quantisation");
}

template void QuantiseRowsCuda(int64_t, int64_t, const float*, uint8_t*, float*, void*);
template void QuantiseRowsCuda(int64_t, int64_t, const BFloat16*, uint8_t*, float*, void*);

}  // namespace augur
