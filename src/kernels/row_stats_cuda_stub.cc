#include "kernels/no_cuda.h"
#include "kernels/row_stats.h"

namespace augur {

template <typename T>
void RowStatsCuda(const LogitRows&, const RowStats<T>&, void*) {
  ThrowNoCuda("row statistics");
}

template <typename T>
void RowGradientCuda(const LogitRows&, const RowGradient<T>&, void*) {
  ThrowNoCuda("row gradients");
}

template void RowStatsCuda(const LogitRows&, const RowStats<float>&, void*);
template void RowStatsCuda(const LogitRows&, const RowStats<double>&, void*);
template void RowGradientCuda(const LogitRows&, const RowGradient<float>&, void*);
template void RowGradientCuda(const LogitRows&, const RowGradient<double>&, void*);

}  // namespace augur
