// Sixteen floats and sixteen int32 as two AVX2 registers each, and the vpmaddwd dot product of one weight group.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace {

constexpr int kMaxRows = 4;
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
inline int32_t ireduce_add(I16 a) {
  int32_t i[16], sum = 0;
  istore(i, a);
  for (int k = 0; k < 16; ++k) sum += i[k];
  return sum;
}
inline int32_t ireduce_max(I16 a) {
  int32_t i[16];
  istore(i, a);
  int32_t top = i[0];
  for (int k = 1; k < 16; ++k) top = i[k] > top ? i[k] : top;
  return top;
}
inline I16 icast(V16 x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
inline V16 vcast(I16 x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
inline I16 iround(V16 x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
inline V16 vfromint(I16 x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }

// ---- weight codes of 16 rows × 32 columns as bytes: w[2j], w[2j + 1] hold rows 0–7 and 8–15 of columns 4j … 4j + 3 --

struct Codes {
  __m256i w[16];
};

// s + w · a, here and now: GCC would gather all products of a group first, on the stack, and add them up afterwards.
inline __m256i add_products(__m256i s, __m256i w, __m256i a) {
  s = _mm256_add_epi32(s, _mm256_madd_epi16(w, a));
  asm("" : "+x"(s));
  return s;
}

inline __m256i load256(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

inline void unpack_nibbles(Codes& c, const uint8_t* p) {
  const __m256i low = _mm256_set1_epi8(15);
  for (int v = 0; v < 4; ++v)
    for (int h = 0; h < 2; ++h) {
      const __m256i b = load256(p + 64 * v + 32 * h);
      c.w[4 * v + h] = _mm256_and_si256(b, low);
      c.w[4 * v + 2 + h] = _mm256_and_si256(_mm256_srli_epi16(b, 4), low);
    }
}
inline void add_plane(Codes& c, const uint8_t* plane, char value) {
  // Spread 32 bits over 32 bytes: copy each source byte eight times, then test one bit per byte.
  const __m256i spread = _mm256_setr_epi64x(0x0000000000000000, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i bits = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201ULL));
  const __m256i add = _mm256_set1_epi8(value);
  for (int i = 0; i < 16; ++i) {
    int32_t mask;
    std::memcpy(&mask, plane + 4 * i, 4);
    const __m256i m = _mm256_shuffle_epi8(_mm256_set1_epi32(mask), spread);
    const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(m, bits), bits);
    c.w[i] = _mm256_add_epi8(c.w[i], _mm256_and_si256(set, add));
  }
}
inline void look_up(Codes& c, const uint8_t* table16) {
  const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table16)));
  for (int i = 0; i < 16; ++i) c.w[i] = _mm256_shuffle_epi8(table, c.w[i]);
}
inline void load_bytes(Codes& c, const uint8_t* p) {
  for (int i = 0; i < 16; ++i) c.w[i] = load256(p + 32 * i);
}

// ---- activations of 32 columns: int16 in the order 0 2 1 3 of every four, to pair with even and odd code bytes -------

inline void store_codes(uint8_t* dst, I16 a0, I16 a1) {
  int32_t a[32];
  istore(a, a0);
  istore(a + 16, a1);
  int16_t out[32];
  for (int k = 0; k < 32; k += 4) {
    out[k] = static_cast<int16_t>(a[k]);
    out[k + 1] = static_cast<int16_t>(a[k + 2]);
    out[k + 2] = static_cast<int16_t>(a[k + 1]);
    out[k + 3] = static_cast<int16_t>(a[k + 3]);
  }
  std::memcpy(dst, out, 64);
}

inline __m256i broadcast4(const uint8_t* p) {
  int32_t word;
  std::memcpy(&word, p, 4);
  return _mm256_set1_epi32(word);
}

template <int J0, int J1>
inline I16 dot(const Codes& c, const uint8_t* a) {
  const __m256i even = _mm256_set1_epi16(0x00ff);
  __m256i s0 = _mm256_setzero_si256();
  __m256i s1 = _mm256_setzero_si256();
  for (int j = J0; j < J1; ++j) {
    const __m256i a02 = broadcast4(a + 8 * j);
    const __m256i a13 = broadcast4(a + 8 * j + 4);
    const __m256i w0 = c.w[2 * j];
    const __m256i w1 = c.w[2 * j + 1];
    s0 = add_products(s0, _mm256_and_si256(w0, even), a02);
    s1 = add_products(s1, _mm256_and_si256(w1, even), a02);
    s0 = add_products(s0, _mm256_srli_epi16(w0, 8), a13);
    s1 = add_products(s1, _mm256_srli_epi16(w1, 8), a13);
  }
  return {s0, s1};
}

// ---- activations of 32 columns as 32 bytes ------------------------------------------------------------------------

inline void store_bytes(uint8_t* dst, I16 a0, I16 a1) {
  int32_t a[32];
  istore(a, a0);
  istore(a + 16, a1);
  for (int k = 0; k < 32; ++k) dst[k] = static_cast<uint8_t>(a[k]);
}

template <bool LARGE, int J0, int J1>
inline I16 dot_bytes(const Codes& c, const uint8_t* a) {
  const __m256i ones = _mm256_set1_epi16(1), low7 = _mm256_set1_epi8(127);
  __m256i s[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
  for (int j = J0; j < J1; ++j) {
    const __m256i act = broadcast4(a + 4 * j);
    for (int h = 0; h < 2; ++h) {
      const __m256i w = c.w[2 * j + h];
      // vpmaddubsw saturates at 16 bits: two products of codes below 128 fit, so bit 7 goes by itself.
      const __m256i low = LARGE ? _mm256_and_si256(w, low7) : w;
      s[h] = _mm256_add_epi32(s[h], _mm256_madd_epi16(_mm256_maddubs_epi16(low, act), ones));
      if (!LARGE) continue;
      const __m256i top = _mm256_maddubs_epi16(_mm256_andnot_si256(low7, w), act);
      s[h] = _mm256_add_epi32(s[h], _mm256_madd_epi16(top, ones));
    }
  }
  return {s[0], s[1]};
}

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
inline void istore_narrow(int16_t* p, I16 a) {
  const __m256i packed = _mm256_packs_epi32(a.a, a.b);  // 0–3, 8–11, 4–7, 12–15
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}
#include "by_lane.inl"
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
