#include "kernels/no_cuda.h"
#include "kernels/support_logits.h"

namespace augur {

template <typename T>
void SupportLogitsCuda(const SupportRows&, T*, void*) {
  ThrowNoCuda("support logits");
}

template void SupportLogitsCuda(const SupportRows&, float*, void*);
template void SupportLogitsCuda(const SupportRows&, double*, void*);

}  // namespace augur
