// Sixteen floats and sixteen int32 in one AVX-512 register each, and the VNNI dot product of one weight group.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace {

constexpr int kMaxRows = 16;     // rows of one weight panel pass: 8 accumulators, 8 weight registers, the rest free
constexpr int kMaxQueries = 12;  // queries that share one pass over a key block

struct V16 {
  __m512 v;
};
struct I16 {
  __m512i v;
};

inline V16 vload(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void vstore(float* p, V16 a) { _mm512_storeu_ps(p, a.v); }
inline V16 vset1(float x) { return {_mm512_set1_ps(x)}; }
inline V16 vadd(V16 a, V16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline V16 vsub(V16 a, V16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline V16 vmul(V16 a, V16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline V16 vdiv(V16 a, V16 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline V16 vmax(V16 a, V16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline V16 vmin(V16 a, V16 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline V16 vfma(V16 a, V16 b, V16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// a < b ? x : y, lane by lane.
inline V16 vselect_lt(V16 a, V16 b, V16 x, V16 y) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
}
inline V16 vload_half(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline void vstore_half(uint16_t* p, V16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline V16 vload_bf16(const uint16_t* p) {
  __m512i w = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(w, 16))};
}

inline I16 iset1(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline I16 iadd(I16 a, I16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline I16 isub(I16 a, I16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
inline I16 iand(I16 a, I16 b) { return {_mm512_and_si512(a.v, b.v)}; }
inline I16 imax(I16 a, I16 b) { return {_mm512_max_epi32(a.v, b.v)}; }
inline I16 imin(I16 a, I16 b) { return {_mm512_min_epi32(a.v, b.v)}; }
template <int S>
inline I16 ishl(I16 a) { return {_mm512_slli_epi32(a.v, S)}; }
inline int32_t ireduce_add(I16 a) { return _mm512_reduce_add_epi32(a.v); }
inline int32_t ireduce_max(I16 a) { return _mm512_reduce_max_epi32(a.v); }
// Lane i: v[i] reduced. Halves of pairs of vectors are put together until each lane holds one of them.
template <class F>
inline I16 ireduce_each(const I16 (&v)[16], F f) {
  __m512i pair[8], four[4], eight[2];
  for (int i = 0; i < 8; ++i)
    pair[i] = f(_mm512_unpacklo_epi32(v[2 * i].v, v[2 * i + 1].v), _mm512_unpackhi_epi32(v[2 * i].v, v[2 * i + 1].v));
  for (int i = 0; i < 4; ++i)
    four[i] = f(_mm512_unpacklo_epi64(pair[2 * i], pair[2 * i + 1]), _mm512_unpackhi_epi64(pair[2 * i], pair[2 * i + 1]));
  const auto across = [&](__m512i a, __m512i b) {
    return f(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
  };
  for (int i = 0; i < 2; ++i) eight[i] = across(four[2 * i], four[2 * i + 1]);
  return {across(eight[0], eight[1])};
}
inline I16 ireduce_add_each(const I16 (&v)[16]) {
  return ireduce_each(v, [](__m512i a, __m512i b) { return _mm512_add_epi32(a, b); });
}
inline I16 ireduce_max_each(const I16 (&v)[16]) {
  return ireduce_each(v, [](__m512i a, __m512i b) { return _mm512_max_epi32(a, b); });
}
// a0 b0 a1 b1 …
inline void izip(I16 a, I16 b, I16& low, I16& high) {
  const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  low = {_mm512_permutex2var_epi32(a.v, first, b.v)};
  high = {_mm512_permutex2var_epi32(a.v, _mm512_add_epi32(first, _mm512_set1_epi32(8)), b.v)};
}
inline void istore(int32_t* p, I16 a) { _mm512_storeu_si512(p, a.v); }
inline I16 icast(V16 a) { return {_mm512_castps_si512(a.v)}; }
inline V16 vcast(I16 a) { return {_mm512_castsi512_ps(a.v)}; }
inline I16 iround(V16 a) { return {_mm512_cvtps_epi32(a.v)}; }
inline V16 vfromint(I16 a) { return {_mm512_cvtepi32_ps(a.v)}; }

// ---- weight codes of 16 rows × 32 columns, one register per 4 columns -------------------------------------------

struct Codes {
  __m512i w[8];
};

inline __m512i load512(const uint8_t* p) { return _mm512_loadu_si512(p); }

inline void unpack_nibbles(Codes& c, const uint8_t* p) {
  const __m512i low = _mm512_set1_epi8(15);
  for (int v = 0; v < 4; ++v) {
    const __m512i b = load512(p + 64 * v);
    c.w[2 * v] = _mm512_and_si512(b, low);
    c.w[2 * v + 1] = _mm512_and_si512(_mm512_srli_epi16(b, 4), low);
  }
}
// Adds `value` to every code whose bit is set in the 64-byte plane.
inline void add_plane(Codes& c, const uint8_t* plane, char value) {
  const __m512i bit = _mm512_set1_epi8(value);
  for (int j = 0; j < 8; ++j) {
    uint64_t mask;
    std::memcpy(&mask, plane + 8 * j, 8);
    c.w[j] = _mm512_mask_add_epi8(c.w[j], mask, c.w[j], bit);
  }
}
inline void look_up(Codes& c, const uint8_t* table16) {
  const __m512i table = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table16)));
  for (int j = 0; j < 8; ++j) c.w[j] = _mm512_shuffle_epi8(table, c.w[j]);
}
inline void load_bytes(Codes& c, const uint8_t* p) {
  for (int j = 0; j < 8; ++j) c.w[j] = load512(p + 64 * j);
}

// ---- activations of 32 columns: 32 high bytes, then 32 low bytes; a = 256 · high + low ---------------------------

inline void store_codes(uint8_t* dst, I16 a0, I16 a1) {
  const __m512i lo0 = _mm512_srai_epi32(_mm512_slli_epi32(a0.v, 24), 24);
  const __m512i lo1 = _mm512_srai_epi32(_mm512_slli_epi32(a1.v, 24), 24);
  const __m512i hi0 = _mm512_srai_epi32(_mm512_sub_epi32(a0.v, lo0), 8);
  const __m512i hi1 = _mm512_srai_epi32(_mm512_sub_epi32(a1.v, lo1), 8);
  __m128i* out = reinterpret_cast<__m128i*>(dst);
  _mm_storeu_si128(out, _mm512_cvtepi32_epi8(hi0));
  _mm_storeu_si128(out + 1, _mm512_cvtepi32_epi8(hi1));
  _mm_storeu_si128(out + 2, _mm512_cvtepi32_epi8(lo0));
  _mm_storeu_si128(out + 3, _mm512_cvtepi32_epi8(lo1));
}

inline __m512i broadcast4(const uint8_t* p) {
  int32_t word;
  std::memcpy(&word, p, 4);
  return _mm512_set1_epi32(word);
}

// Exact dot products of columns [4·J0, 4·J1) of the group: sum over columns of code · activation, per row.
template <int J0, int J1>
inline I16 dot(const Codes& c, const uint8_t* a) {
  __m512i hi = _mm512_setzero_si512();
  __m512i lo = _mm512_setzero_si512();
  for (int j = J0; j < J1; ++j) {
    hi = _mm512_dpbusd_epi32(hi, c.w[j], broadcast4(a + 4 * j));
    lo = _mm512_dpbusd_epi32(lo, c.w[j], broadcast4(a + 32 + 4 * j));
  }
  return {_mm512_add_epi32(_mm512_slli_epi32(hi, 8), lo)};
}

// ---- activations of 32 columns as 32 bytes ------------------------------------------------------------------------

inline void store_bytes(uint8_t* dst, I16 a0, I16 a1) {
  __m128i* out = reinterpret_cast<__m128i*>(dst);
  _mm_storeu_si128(out, _mm512_cvtepi32_epi8(a0.v));
  _mm_storeu_si128(out + 1, _mm512_cvtepi32_epi8(a1.v));
}

template <bool LARGE, int J0, int J1>
inline I16 dot_bytes(const Codes& c, const uint8_t* a) {
  __m512i s = _mm512_setzero_si512();
  for (int j = J0; j < J1; ++j) s = _mm512_dpbusd_epi32(s, c.w[j], broadcast4(a + 4 * j));
  return {s};
}

// ---- attention codes: int16 pairs in 32-bit lanes ----------------------------------------------------------------

inline I16 iload(const void* p) { return {_mm512_loadu_si512(p)}; }
inline I16 ispread(const void* p) {
  int32_t word;
  std::memcpy(&word, p, 4);
  return {_mm512_set1_epi32(word)};
}
// acc + a.low · b.low + a.high · b.high in each lane, modulo 2^32.
inline I16 idot_pairs(I16 acc, I16 a, I16 b) { return {_mm512_dpwssd_epi32(acc.v, a.v, b.v)}; }
inline I16 imul_pairs(I16 a, I16 b) { return {_mm512_mullo_epi16(a.v, b.v)}; }
inline void istore_narrow(int16_t* p, I16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(a.v));
}
// The low halves of the lanes into every other number from p on; what lies between is not touched.
inline void istore_every_other(int16_t* p, I16 a) {
  _mm512_mask_storeu_epi16(p, 0x55555555u, a.v);
}
inline I16 iload_bytes(const void* p) {  // 32 signed bytes
  return {_mm512_cvtepi8_epi16(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}
inline I16 iload_nibbles(const void* p) {  // 16 bytes of two codes 0 … 15, minus 8
  const __m512i x = _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  const __m512i pairs = _mm512_and_si512(_mm512_or_si512(x, _mm512_slli_epi32(x, 12)), _mm512_set1_epi32(0x000f000f));
  return {_mm512_sub_epi16(pairs, _mm512_set1_epi16(8))};
}
// Two rows of 16 bytes → pairs (row a, row b) of the low and of the high nibbles, minus 8.
inline void iload_nibble_rows(const void* a, const void* b, I16& low, I16& high) {
  const __m512i x = _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(a)));
  const __m512i y = _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(b)));
  const __m512i both = _mm512_or_si512(x, _mm512_slli_epi32(y, 16));
  const __m512i mask = _mm512_set1_epi32(0x000f000f), eight = _mm512_set1_epi16(8);
  low = {_mm512_sub_epi16(_mm512_and_si512(both, mask), eight)};
  high = {_mm512_sub_epi16(_mm512_and_si512(_mm512_srli_epi32(both, 4), mask), eight)};
}
inline I16 iload_lanes(const void* p) {  // 16 unsigned bytes
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
}
inline I16 imul(I16 a, I16 b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
inline I16 iload_factors(const void* p) {  // 16 unsigned bytes, each in both halves of its lane
  const __m512i x = _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  return {_mm512_or_si512(x, _mm512_slli_epi32(x, 16))};
}

inline float reduce_add(V16 a) {
  const __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  const __m128 d = _mm_add_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)));
}
inline float reduce_max(V16 a) {
  const __m256 b = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  const __m128 d = _mm_max_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_max_ss(d, _mm_movehdup_ps(d)));
}

}  // namespace
