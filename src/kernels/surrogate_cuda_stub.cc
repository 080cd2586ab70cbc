#include "kernels/no_cuda.h"
#include "kernels/surrogate.h"

namespace augur {

template <typename T>
void SurrogateCuda(const MaskRule&, const SurrogateInput<T>&, const SurrogateOutput<T>&, void*) {
  ThrowNoCuda("policy loss");
}

template <typename T>
void DecisionSumsCuda(const MaskRule&, const SurrogateInput<T>&, const T*, double*, void*) {
  ThrowNoCuda("decision metrics");
}

template void SurrogateCuda(const MaskRule&, const SurrogateInput<float>&, const SurrogateOutput<float>&,
                            void*);
template void SurrogateCuda(const MaskRule&, const SurrogateInput<double>&, const SurrogateOutput<double>&,
                            void*);
template void DecisionSumsCuda(const MaskRule&, const SurrogateInput<float>&, const float*, double*, void*);
template void DecisionSumsCuda(const MaskRule&, const SurrogateInput<double>&, const double*, double*, void*);

}  // namespace augur
