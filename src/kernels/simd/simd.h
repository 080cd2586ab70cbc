// Vector code beyond the baseline of the architecture, from the compiler.
#pragma once

// Compiles a function once per instruction set and picks at load time. Everything it calls must be inlined.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define AUGUR_CPU_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define AUGUR_CPU_CLONES
#endif
