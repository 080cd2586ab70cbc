// Element types as the CPU kernels compute with them.
#pragma once

#include <type_traits>

#include "base/error.h"
#include "kernels/simd/element.h"

namespace augur {

inline float Widen(BFloat16 x) { return x; }
inline float Widen(float x) { return x; }
inline double Widen(double x) { return x; }
inline void Store(float value, BFloat16* out) { *out = BFloat16::From(value); }
inline void Store(float value, float* out) { *out = value; }
inline void Store(double value, double* out) { *out = value; }

// Calls f with a value of the element type; half values are widened before they come here.
template <typename T, typename F>
void WithElement(ElementType type, F f) {
  if constexpr (std::is_same_v<T, double>) {
    if (type == ElementType::kDouble) return f(double());
  } else {
    if (type == ElementType::kFloat) return f(float());
    if (type == ElementType::kBFloat16) return f(BFloat16());
  }
  throw Error("logits", "this element type has no CPU kernel", "convert them to float32 first");
}

}  // namespace augur
