// What sampling asks of sixteen lanes, with AVX-512: masks, compaction, and exact sums of weights.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace {

constexpr int kAtOnce = 4;  // exponentials computed side by side: one alone waits for itself

inline uint32_t mask_greater(V16 a, V16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ); }
inline uint32_t mask_not_less(V16 a, V16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ); }

inline float max_lane(V16 a) {
  const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// Sum of round(2^42 · w), ties to even, over lanes: whole numbers, so the order of the terms does not matter.
class WeightSum {
 public:
  void add(V16 w, uint32_t mask) { add({_mm512_maskz_mov_ps(static_cast<__mmask16>(mask), w.v)}); }
  void add(V16 w) {
    const __m512 scaled = _mm512_mul_ps(w.v, _mm512_set1_ps(0x1p42f));
    a_ = _mm512_add_epi64(a_, _mm512_cvtps_epi64(_mm512_castps512_ps256(scaled)));
    b_ = _mm512_add_epi64(b_, _mm512_cvtps_epi64(_mm512_extractf32x8_ps(scaled, 1)));
  }
  uint64_t total() const {
    uint64_t parts[8], sum = 0;
    _mm512_storeu_si512(parts, _mm512_add_epi64(a_, b_));
    for (const uint64_t part : parts) sum += part;
    return sum;
  }

 private:
  __m512i a_ = _mm512_setzero_si512(), b_ = _mm512_setzero_si512();
};

// Writes the lanes of `mask` one after the other, and whatever into the rest of sixteen places.
inline void compact(float* out, V16 x, uint32_t mask) {
  _mm512_storeu_ps(out, _mm512_maskz_compress_ps(static_cast<__mmask16>(mask), x.v));
}
inline void compact(int32_t* out, I16 x, uint32_t mask) {
  _mm512_storeu_si512(out, _mm512_maskz_compress_epi32(static_cast<__mmask16>(mask), x.v));
}
inline I16 iload(const int32_t* p) { return {_mm512_loadu_si512(p)}; }

}  // namespace
