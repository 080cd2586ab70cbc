// Files named *_lanes.cc hold what depends on the width of vectors. On x86 they are compiled three times, as
// the baseline and for AVX2 and AVX-512 (cmake/lanes.cmake), and the widest that CurrentIsa() allows is taken
// when the program runs.
//
// Such a file defines AUGUR_LANES_TABLE(kName), a table of functions, which others reach with
// AUGUR_LANES_CHOICE(kName). What inline functions it needs stands in the inline namespace AUGUR_LANES, so
// that the linker never takes one width's for another's; for the same reason it uses nothing of the standard
// library that is not inlined (tests/python/test_lanes.py).
#pragma once

#include "kernels/simd/isa.h"

#if defined(__AVX512F__)
#define AUGUR_LANES avx512
#elif defined(__AVX2__)
#define AUGUR_LANES avx2
#else
#define AUGUR_LANES baseline
#endif

#define AUGUR_LANES_JOINED(name, lanes) name##_##lanes
#define AUGUR_LANES_NAMED(name, lanes) AUGUR_LANES_JOINED(name, lanes)
#define AUGUR_LANES_TABLE(name) AUGUR_LANES_NAMED(name, AUGUR_LANES)

#if defined(__x86_64__)
#define AUGUR_LANES_DECLARE(Table, name) extern const Table name##_baseline, name##_avx2, name##_avx512
#define AUGUR_LANES_CHOICE(name) \
  (CurrentIsa() >= Isa::kAvx512 ? name##_avx512 : CurrentIsa() == Isa::kAvx2 ? name##_avx2 : name##_baseline)
#else
#define AUGUR_LANES_DECLARE(Table, name) extern const Table name##_baseline
#define AUGUR_LANES_CHOICE(name) name##_baseline
#endif
