// What the compiler is told about loops.
#pragma once

// Without it, the compiler keeps the accumulators of many rows in memory.
#define PELLUCID_UNROLL _Pragma("GCC unroll 16")
// Inlined into the loops around them, so that the compiler unrolls early and keeps the sums in registers.
#define PELLUCID_INLINE __attribute__((always_inline)) inline
