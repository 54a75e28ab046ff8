// What sampling asks of sixteen lanes, with AVX2: masks, compaction, and exact sums of weights.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace {

constexpr int kAtOnce = 2;  // exponentials computed side by side: one alone waits for itself

inline uint32_t mask_greater(V16 x, V16 y) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(x.a, y.a, _CMP_GT_OQ))) |
         static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(x.b, y.b, _CMP_GT_OQ))) << 8;
}
inline uint32_t mask_not_less(V16 x, V16 y) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(x.a, y.a, _CMP_GE_OQ))) |
         static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(x.b, y.b, _CMP_GE_OQ))) << 8;
}

inline float max_lane(V16 x) {
  const __m256 eight = _mm256_max_ps(x.a, x.b);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// Sum of round(2^42 · w), ties to even, over lanes: whole numbers, so the order of the terms does not matter.
class WeightSum {
 public:
  void add(V16 w, uint32_t mask) {
    add8(_mm256_and_ps(w.a, spread(mask & 255)));
    add8(_mm256_and_ps(w.b, spread(mask >> 8)));
  }
  void add(V16 w) {
    add8(w.a);
    add8(w.b);
  }
  uint64_t total() const {
    uint64_t parts[8];
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(parts), a_);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(parts + 4), b_);
    uint64_t sum = 0;
    for (const uint64_t part : parts) sum += part;
    return sum;
  }

 private:
  static __m256 spread(uint32_t mask) {
    const __m256i bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int>(mask)), bits), bits));
  }
  void add8(__m256 w) {
    a_ = _mm256_add_epi64(a_, whole(_mm256_cvtps_pd(_mm256_castps256_ps128(w))));
    b_ = _mm256_add_epi64(b_, whole(_mm256_cvtps_pd(_mm256_extractf128_ps(w, 1))));
  }
  static __m256i whole(__m256d w) {
    const __m256d magic = _mm256_set1_pd(0x1.8p52);  // adding it rounds to the nearest whole number
    const __m256d rounded = _mm256_add_pd(_mm256_mul_pd(w, _mm256_set1_pd(0x1p42)), magic);
    return _mm256_sub_epi64(_mm256_castpd_si256(rounded), _mm256_castpd_si256(magic));
  }
  __m256i a_ = _mm256_setzero_si256(), b_ = _mm256_setzero_si256();
};

// Writes the lanes of `mask` one after the other.
inline void compact(float* out, V16 x, uint32_t mask) {
  float lanes[16];
  vstore(lanes, x);
  for (; mask != 0; mask &= mask - 1) *out++ = lanes[__builtin_ctz(mask)];
}
inline void compact(int32_t* out, I16 x, uint32_t mask) {
  int32_t lanes[16];
  istore(lanes, x);
  for (; mask != 0; mask &= mask - 1) *out++ = lanes[__builtin_ctz(mask)];
}
inline I16 iload(const int32_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}

}  // namespace
