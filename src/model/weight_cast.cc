#include "model/weight_cast.h"

#include <c10/util/Half.h>

#include <cmath>
#include <cstring>

#include "kernels/simd/element.h"
#include "ops/typed_data.h"

namespace augur {
namespace {

bool IsFinite(float x) { return std::isfinite(x); }
bool IsFinite(BFloat16 x) { return (x.bits & 0x7F80) != 0x7F80; }

// The stored bytes may stand at any address, so each value is copied out; compilers make that a plain load.
template <typename From, typename To>
bool Cast(const std::byte* from, To* to, int64_t count) {
  int64_t bad = 0;
#pragma omp parallel for simd schedule(static) reduction(+ : bad)
  for (int64_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, from + i * static_cast<int64_t>(sizeof(From)), sizeof(From));
    const To rounded = FromFloat<To>(static_cast<float>(value));
    to[i] = rounded;
    bad += !IsFinite(rounded);
  }
  return bad == 0;
}

}  // namespace

bool CastWeights(const TensorView& from, const at::Tensor& to) {
  bool finite = false;
  WithElementType(to, [&]<typename To>(To) {
    const std::byte* bytes = from.bytes.data();
    if (from.dtype == DType::kF32) finite = Cast<float>(bytes, Data<To>(to), to.numel());
    if (from.dtype == DType::kF16) finite = Cast<c10::Half>(bytes, Data<To>(to), to.numel());
    if (from.dtype == DType::kBF16) finite = Cast<BFloat16>(bytes, Data<To>(to), to.numel());
  });
  return finite;
}

DType StoredType(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBFloat16 ? DType::kBF16 : DType::kF32;
}

}  // namespace augur
