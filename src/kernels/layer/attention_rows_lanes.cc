#include "kernels/layer/attention_rows.h"
#include "kernels/simd/float_lanes.h"

namespace augur {
inline namespace AUGUR_LANES {
namespace {

template <typename T>
void Load(const T* from, int dim, float scale, int width, float* to) {
  for (int d = 0; d < width; d += kFloats) {
    const Floats x = d < dim ? scale * LoadLanes(from + d, dim - d) : Floats{};
    StoreLanes(x, to + d, width - d);
  }
}

template <typename T>
void Store(const float* from, int dim, float scale, T* to) {
  for (int d = 0; d < dim; d += kFloats) StoreLanes(scale * LoadLanes(from + d, dim - d), to + d, dim - d);
}

template <typename T>
float Dot(const T* a, const T* b, int dim) {
  Floats sum{};
  for (int d = 0; d < dim; d += kFloats) sum += LoadLanes(a + d, dim - d) * LoadLanes(b + d, dim - d);
  return SumOf(sum);
}

}  // namespace
}  // namespace AUGUR_LANES

extern const AttentionRows<float> AUGUR_LANES_TABLE(kFloatAttentionRows) = {Load<float>, Store<float>,
                                                                            Dot<float>};
extern const AttentionRows<BFloat16> AUGUR_LANES_TABLE(kBf16AttentionRows) = {Load<BFloat16>, Store<BFloat16>,
                                                                              Dot<BFloat16>};

}  // namespace augur
