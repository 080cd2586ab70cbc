#include <algorithm>

#include "kernels/head/surrogate.h"
#include "kernels/head/surrogate_math.h"

namespace augur {

template <typename T>
void SurrogateCpu(const LossTerms& terms, const SurrogateInput<T>& in, const SurrogateOutput<T>& out) {
#pragma omp parallel for schedule(static) if (in.tokens > 1024)
  for (int64_t t = 0; t < in.tokens; ++t) WriteTerms(terms, in, out, t);
}

template <typename T>
void DecisionSumsCpu(const MaskRule& rule, const SurrogateInput<T>& in, const T* loss, double* sums) {
  std::fill_n(sums, kDecisionSums, 0.0);
  for (int64_t t = 0; t < in.tokens; ++t) AddToSums(rule, in, loss, t, sums);
}

template void SurrogateCpu(const LossTerms&, const SurrogateInput<float>&, const SurrogateOutput<float>&);
template void SurrogateCpu(const LossTerms&, const SurrogateInput<double>&, const SurrogateOutput<double>&);
template void DecisionSumsCpu(const MaskRule&, const SurrogateInput<float>&, const float*, double*);
template void DecisionSumsCpu(const MaskRule&, const SurrogateInput<double>&, const double*, double*);

}  // namespace augur
