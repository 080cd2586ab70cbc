// The steps of products in registers, written so that the compiler adds nothing to them.
#pragma once

#include <utility>

#include "kernels/simd/vector_math.h"

// Also before the body of a function that Unroll calls, so that what it captures stays in registers.
#define AUGUR_INLINE __attribute__((always_inline))

namespace augur {
inline namespace AUGUR_LANES {

// sum + x * y. g++ would otherwise take the form that overwrites x, and copy it first.
inline AUGUR_INLINE Floats MultiplyAdd(Floats sum, Floats x, Floats y) {
#if defined(__AVX2__)
  asm("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(x), "v"(y));
  return sum;
#else
  return sum + x * y;
#endif
}

inline AUGUR_INLINE Floats Broadcast(const float* from) {
#if defined(__AVX2__)  // and would broadcast once more in every multiply-add
  Floats all;
  asm("vbroadcastss %1, %0" : "=v"(all) : "m"(*from));
  return all;
#else
  return Floats{} + *from;
#endif
}

// Neighbouring bfloat16 in one word of a vector.
typedef uint32_t Pairs __attribute__((vector_size(4 * kFloats), aligned(4), may_alias));

inline AUGUR_INLINE Floats FirstOf(Pairs pairs) { return (Floats)(pairs << 16); }
inline AUGUR_INLINE Floats SecondOf(Pairs pairs) { return (Floats)(pairs & 0xffff0000u); }

// f(0) ... f(N - 1), each with its own code.
template <int N, typename F>
inline AUGUR_INLINE void Unroll(F f) {
  [&]<int... I>(std::integer_sequence<int, I...>)
      AUGUR_INLINE { (f(std::integral_constant<int, I>()), ...); }(std::make_integer_sequence<int, N>());
}
}  // namespace AUGUR_LANES
}  // namespace augur
