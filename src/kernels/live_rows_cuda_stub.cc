#include "kernels/live_rows.h"
#include "kernels/no_cuda.h"

namespace augur {

template <typename T>
void LiveRowsCuda(const LiveRowsInput<T>&, int32_t*, int32_t*, void*) {
  ThrowNoCuda("live rows");
}

template void LiveRowsCuda(const LiveRowsInput<float>&, int32_t*, int32_t*, void*);
template void LiveRowsCuda(const LiveRowsInput<double>&, int32_t*, int32_t*, void*);

}  // namespace augur
