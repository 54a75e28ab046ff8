// Sixteen floats and sixteen int32 as two AVX2 registers each.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "sums_avx2.h"

namespace {

constexpr int kMaxQueries = 4;

struct V16 {
  __m256 a, b;
};
struct I16 {
  __m256i a, b;
};

inline V16 vload(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void vstore(float* p, V16 x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
inline V16 vset1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline V16 vadd(V16 x, V16 y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline V16 vsub(V16 x, V16 y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline V16 vmul(V16 x, V16 y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline V16 vdiv(V16 x, V16 y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline V16 vmax(V16 x, V16 y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline V16 vmin(V16 x, V16 y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline V16 vfma(V16 x, V16 y, V16 z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
inline V16 vselect_lt(V16 p, V16 q, V16 x, V16 y) {
  return {_mm256_blendv_ps(y.a, x.a, _mm256_cmp_ps(p.a, q.a, _CMP_LT_OQ)),
          _mm256_blendv_ps(y.b, x.b, _mm256_cmp_ps(p.b, q.b, _CMP_LT_OQ))};
}
inline V16 vload_half(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline void vstore_half(uint16_t* p, V16 x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}
inline V16 vload_bf16(const uint16_t* p) {
  const __m256i lo = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i hi = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))};
}

inline I16 iset1(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline I16 iadd(I16 x, I16 y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
inline I16 isub(I16 x, I16 y) { return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)}; }
inline I16 iand(I16 x, I16 y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
inline I16 imax(I16 x, I16 y) { return {_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)}; }
inline I16 imin(I16 x, I16 y) { return {_mm256_min_epi32(x.a, y.a), _mm256_min_epi32(x.b, y.b)}; }
template <int S>
inline I16 ishl(I16 x) { return {_mm256_slli_epi32(x.a, S), _mm256_slli_epi32(x.b, S)}; }
inline void istore(int32_t* p, I16 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.a);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), x.b);
}
inline __m256i add8(__m256i x, __m256i y) { return _mm256_add_epi32(x, y); }
inline __m256i max8(__m256i x, __m256i y) { return _mm256_max_epi32(x, y); }
// One number from sixteen lanes.
template <class F>
inline int32_t ireduce(I16 x, F f) {
  const __m256i eight = f(x.a, x.b);
  const __m256i four = f(eight, _mm256_permute2x128_si256(eight, eight, 1));
  const __m256i two = f(four, _mm256_shuffle_epi32(four, 0x4e));
  return _mm256_extract_epi32(f(two, _mm256_shuffle_epi32(two, 0xb1)), 0);
}
inline int32_t ireduce_add(I16 x) { return ireduce(x, add8); }
inline int32_t ireduce_max(I16 x) { return ireduce(x, max8); }
// Lane i: v[i] reduced. Halves of pairs of vectors are put together until each lane holds one of them.
template <class F>
inline __m256i ireduce_eight(const I16* v, F f) {
  __m256i pair[4], four[2];
  for (int i = 0; i < 4; ++i) {
    const __m256i x = f(v[2 * i].a, v[2 * i].b), y = f(v[2 * i + 1].a, v[2 * i + 1].b);
    pair[i] = f(_mm256_unpacklo_epi32(x, y), _mm256_unpackhi_epi32(x, y));
  }
  for (int i = 0; i < 2; ++i)
    four[i] = f(_mm256_unpacklo_epi64(pair[2 * i], pair[2 * i + 1]), _mm256_unpackhi_epi64(pair[2 * i], pair[2 * i + 1]));
  return f(_mm256_permute2x128_si256(four[0], four[1], 0x20), _mm256_permute2x128_si256(four[0], four[1], 0x31));
}
inline I16 ireduce_add_each(const I16 (&v)[16]) { return {ireduce_eight(v, add8), ireduce_eight(v + 8, add8)}; }
inline I16 ireduce_max_each(const I16 (&v)[16]) { return {ireduce_eight(v, max8), ireduce_eight(v + 8, max8)}; }
// a0 b0 a1 b1 …
inline I16 izip_eight(__m256i x, __m256i y) {
  const __m256i low = _mm256_unpacklo_epi32(x, y), high = _mm256_unpackhi_epi32(x, y);
  return {_mm256_permute2x128_si256(low, high, 0x20), _mm256_permute2x128_si256(low, high, 0x31)};
}
inline void izip(I16 x, I16 y, I16& low, I16& high) {
  low = izip_eight(x.a, y.a);
  high = izip_eight(x.b, y.b);
}
// Numbers that fit into 16 bits, in order.
inline __m256i inarrow(I16 x) { return _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8); }
inline I16 icast(V16 x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
inline V16 vcast(I16 x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
inline I16 iround(V16 x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
inline V16 vfromint(I16 x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }

// ---- attention codes: int16 pairs in 32-bit lanes ----------------------------------------------------------------

inline I16 iload(const void* p) {
  const __m256i* q = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
inline I16 ispread(const void* p) {
  int32_t word;
  std::memcpy(&word, p, 4);
  return iset1(word);
}
inline I16 idot_pairs(I16 acc, I16 a, I16 b) {
  return {add_products(acc.a, a.a, b.a), add_products(acc.b, a.b, b.b)};
}
inline I16 imul_pairs(I16 a, I16 b) { return {_mm256_mullo_epi16(a.a, b.a), _mm256_mullo_epi16(a.b, b.b)}; }
inline void istore_narrow(int16_t* p, I16 a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), inarrow(a)); }
// The low halves of the lanes into every other number from p on; what lies between is not touched: another worker may write it.
inline void istore_every_other(int16_t* p, I16 a) {
  int16_t narrow[16];
  istore_narrow(narrow, a);
  for (int k = 0; k < 16; ++k) p[2 * k] = narrow[k];
}
inline I16 iload_bytes(const void* p) {
  const __m128i* q = static_cast<const __m128i*>(p);
  return {_mm256_cvtepi8_epi16(_mm_loadu_si128(q)), _mm256_cvtepi8_epi16(_mm_loadu_si128(q + 1))};
}
inline I16 iload_lanes(const void* p) {  // 16 unsigned bytes
  const __m128i x = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_srli_si128(x, 8))};
}
inline I16 imul(I16 a, I16 b) { return {_mm256_mullo_epi32(a.a, b.a), _mm256_mullo_epi32(a.b, b.b)}; }
inline I16 iload_nibbles(const void* p) {
  const I16 x = iload_lanes(p);
  const __m256i mask = _mm256_set1_epi32(0x000f000f), eight = _mm256_set1_epi16(8);
  const auto pairs = [&](__m256i y) {
    return _mm256_sub_epi16(_mm256_and_si256(_mm256_or_si256(y, _mm256_slli_epi32(y, 12)), mask), eight);
  };
  return {pairs(x.a), pairs(x.b)};
}
inline void iload_nibble_rows(const void* a, const void* b, I16& low, I16& high) {
  const I16 x = iload_lanes(a), y = iload_lanes(b);
  const __m256i mask = _mm256_set1_epi32(0x000f000f), eight = _mm256_set1_epi16(8);
  const __m256i first = _mm256_or_si256(x.a, _mm256_slli_epi32(y.a, 16));
  const __m256i second = _mm256_or_si256(x.b, _mm256_slli_epi32(y.b, 16));
  const auto codes = [&](__m256i z) { return _mm256_sub_epi16(_mm256_and_si256(z, mask), eight); };
  low = {codes(first), codes(second)};
  high = {codes(_mm256_srli_epi32(first, 4)), codes(_mm256_srli_epi32(second, 4))};
}
inline I16 iload_factors(const void* p) {
  const I16 x = iload_lanes(p);
  return {_mm256_or_si256(x.a, _mm256_slli_epi32(x.a, 16)), _mm256_or_si256(x.b, _mm256_slli_epi32(x.b, 16))};
}

inline float reduce_add(V16 a) {
  const __m256 b = _mm256_add_ps(a.a, a.b);
  const __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  const __m128 d = _mm_add_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)));
}
inline float reduce_max(V16 a) {
  const __m256 b = _mm256_max_ps(a.a, a.b);
  const __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  const __m128 d = _mm_max_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_max_ss(d, _mm_movehdup_ps(d)));
}

}  // namespace
