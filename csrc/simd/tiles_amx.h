// Intel AMX tiles. Written as assembly: the compiler's own macros take no template arguments, and GCC 12's
// _tile_loadconfig does not say that it reads memory.
#pragma once
#include "tiles.h"

namespace {

inline void tiles_configure(const TileConfig& config) { asm volatile("ldtilecfg %0" ::"m"(config) : "memory"); }
inline void tiles_release() { asm volatile("tilerelease" ::: "memory"); }

template <int T>
inline void tile_zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(T));
}
template <int T>
inline void tile_load(const void* from, size_t stride) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(T), "r"(from), "r"(stride) : "memory");
}
template <int T>
inline void tile_store(void* to, size_t stride) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(T), "r"(to), "r"(stride) : "memory");
}
// C[m][n] += Σ over bytes of A[m] (signed) · B (unsigned), in groups of four columns.
template <int C, int A, int B>
inline void tile_dot_bytes() {
  asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}
// C[m][n] += Σ over pairs of bfloat16, in float32.
template <int C, int A, int B>
inline void tile_dot_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}

}  // namespace
