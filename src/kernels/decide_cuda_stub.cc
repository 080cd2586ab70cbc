#include "kernels/decide.h"
#include "kernels/no_cuda.h"

namespace augur {

template <typename T>
void DecideCuda(const MaskRule&, const DecideInput<T>&, const DecideOutput<T>&, void*) {
  ThrowNoCuda("token decisions");
}

template void DecideCuda(const MaskRule&, const DecideInput<float>&, const DecideOutput<float>&, void*);
template void DecideCuda(const MaskRule&, const DecideInput<double>&, const DecideOutput<double>&, void*);

}  // namespace augur
