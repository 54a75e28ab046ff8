// What sampling asks of sixteen lanes, in portable C++: masks, compaction, and exact sums of weights.
#pragma once
#include <cstdint>
#include <cstring>

namespace {

constexpr int kAtOnce = 1;  // exponentials computed side by side: one alone waits for itself

inline uint32_t mask_greater(V16 a, V16 b) {
  uint32_t mask = 0;
  for (int k = 0; k < 16; ++k) mask |= static_cast<uint32_t>(a.f[k] > b.f[k]) << k;
  return mask;
}
inline uint32_t mask_not_less(V16 a, V16 b) {
  uint32_t mask = 0;
  for (int k = 0; k < 16; ++k) mask |= static_cast<uint32_t>(a.f[k] >= b.f[k]) << k;
  return mask;
}

inline float max_lane(V16 a) {
  float largest = a.f[0];
  for (int k = 1; k < 16; ++k) largest = a.f[k] > largest ? a.f[k] : largest;
  return largest;
}

// Sum of round(2^42 · w), ties to even, over lanes: whole numbers, so the order of the terms does not matter.
class WeightSum {
 public:
  void add(V16 w, uint32_t mask) {
    for (int k = 0; k < 16; ++k) sum_[k] += (mask >> k & 1) != 0 ? whole(w.f[k]) : 0;
  }
  void add(V16 w) {
    for (int k = 0; k < 16; ++k) sum_[k] += whole(w.f[k]);
  }
  uint64_t total() const {
    uint64_t sum = 0;
    for (const uint64_t part : sum_) sum += part;
    return sum;
  }

 private:
  static uint64_t whole(float w) {
    const double magic = 0x1.8p52;  // adding it rounds to the nearest whole number
    const double rounded = static_cast<double>(w) * 0x1p42 + magic;
    uint64_t bits, base;
    std::memcpy(&bits, &rounded, sizeof bits);
    std::memcpy(&base, &magic, sizeof base);
    return bits - base;
  }
  uint64_t sum_[16] = {};
};

// Writes the lanes of `mask` one after the other.
inline void compact(float* out, V16 x, uint32_t mask) {
  for (int k = 0; k < 16; ++k)
    if ((mask >> k & 1) != 0) *out++ = x.f[k];
}
inline void compact(int32_t* out, I16 x, uint32_t mask) {
  for (int k = 0; k < 16; ++k)
    if ((mask >> k & 1) != 0) *out++ = x.i[k];
}
inline I16 iload(const int32_t* p) {
  I16 r;
  std::memcpy(r.i, p, sizeof r.i);
  return r;
}

}  // namespace
