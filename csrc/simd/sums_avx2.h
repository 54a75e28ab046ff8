// Sums of products of small integers in 32-bit lanes of 256-bit registers: one instruction where the processor has AVX-VNNI,
// a product and an addition where it has not.
#pragma once
#include <immintrin.h>

namespace {

#ifdef PELLUCID_AVXVNNI
constexpr bool kByteSums = true;  // products of bytes are added four at a time
#else
constexpr bool kByteSums = false;
#endif

#if defined(PELLUCID_AVXVNNI) && !defined(PELLUCID_EMULATE_AVXVNNI)

// s + w · a over pairs of 16-bit numbers.
inline __m256i add_products(__m256i s, __m256i w, __m256i a) { return _mm256_dpwssd_avx_epi32(s, w, a); }
// s + w · a over fours of bytes: codes without a sign, activations with one.
inline __m256i add_byte_products(__m256i s, __m256i w, __m256i a) { return _mm256_dpbusd_avx_epi32(s, w, a); }

#else

// Here and now: GCC would gather all products of a sum first, on the stack, and add them up afterwards.
inline __m256i add_products(__m256i s, __m256i w, __m256i a) {
  s = _mm256_add_epi32(s, _mm256_madd_epi16(w, a));
  asm("" : "+x"(s));
  return s;
}
// Two products of codes below 128 fit into 16 bits; bit 7 goes by itself. As one instruction does it, for tests.
inline __m256i add_byte_products(__m256i s, __m256i w, __m256i a) {
  const __m256i ones = _mm256_set1_epi16(1), low7 = _mm256_set1_epi8(127);
  s = add_products(s, _mm256_maddubs_epi16(_mm256_and_si256(w, low7), a), ones);
  return add_products(s, _mm256_maddubs_epi16(_mm256_andnot_si256(low7, w), a), ones);
}

#endif

}  // namespace
