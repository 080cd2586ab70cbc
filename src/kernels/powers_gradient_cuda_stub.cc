#include "kernels/no_cuda.h"
#include "kernels/powers_gradient.h"

namespace augur {

template <typename T>
void PowersGradientCuda(const LogitRows&, const PowersGradient<T>&, void*) {
  ThrowNoCuda("row gradients");
}

template void PowersGradientCuda(const LogitRows&, const PowersGradient<float>&, void*);
template void PowersGradientCuda(const LogitRows&, const PowersGradient<double>&, void*);

}  // namespace augur
