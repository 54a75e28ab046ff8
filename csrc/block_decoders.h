// GGUF blocks whose scales become floats → unsigned codes, scales and minima. Layouts as in the GGUF specification
// (ggml's block structures).
#pragma once
#include <cstdint>
#include <cstring>

#include "half.h"

namespace pellucid {

// Receives one row: q[columns], scale[columns / group], minimum[columns / group].
struct DecodedRow {
  uint8_t* q;
  float* scale;
  float* minimum;
};

namespace blocks {

inline float f16(const uint8_t* p) {
  uint16_t h;
  std::memcpy(&h, p, 2);
  return half_to_float(h);
}

inline void nibbles32(const uint8_t* qs, uint8_t* q) {
  for (int i = 0; i < 16; ++i) {
    q[i] = qs[i] & 15;
    q[i + 16] = qs[i] >> 4;
  }
}

inline void q2_k(const uint8_t* b, DecodedRow r) {
  const uint8_t* scales = b;
  const float d = f16(b + 80), dmin = f16(b + 82);
  for (int g = 0; g < 16; ++g) {
    r.scale[g] = d * static_cast<float>(scales[g] & 15);
    r.minimum[g] = -dmin * static_cast<float>(scales[g] >> 4);
  }
  for (int half = 0; half < 2; ++half)
    for (int j = 0; j < 4; ++j)
      for (int l = 0; l < 32; ++l) r.q[128 * half + 32 * j + l] = (b[16 + 32 * half + l] >> (2 * j)) & 3;
}

inline void q3_k(const uint8_t* b, DecodedRow r) {
  const uint8_t *hmask = b, *qs = b + 32, *s = b + 96;
  const float d = f16(b + 108);
  for (int g = 0; g < 16; ++g) {
    const int low = g < 8 ? s[g] & 15 : s[g - 8] >> 4;
    const int high = (s[8 + g % 4] >> (2 * (g / 4))) & 3;
    r.scale[g] = d * static_cast<float>((low | (high << 4)) - 32);
  }
  for (int half = 0; half < 2; ++half)
    for (int j = 0; j < 4; ++j)
      for (int l = 0; l < 32; ++l)
        r.q[128 * half + 32 * j + l] =
            static_cast<uint8_t>(((qs[32 * half + l] >> (2 * j)) & 3) | (((hmask[l] >> (4 * half + j)) & 1) << 2));
}

// The eight 6-bit scales and minima of Q4_K and Q5_K.
inline void six_bit_scales(const uint8_t* b, DecodedRow r) {
  const float d = f16(b), dmin = f16(b + 2);
  const uint8_t* s = b + 4;
  for (int g = 0; g < 8; ++g) {
    const int scale = g < 4 ? s[g] & 63 : (s[g + 4] & 15) | ((s[g - 4] >> 6) << 4);
    const int minimum = g < 4 ? s[g + 4] & 63 : (s[g + 4] >> 4) | ((s[g] >> 6) << 4);
    r.scale[g] = d * static_cast<float>(scale);
    r.minimum[g] = -dmin * static_cast<float>(minimum);
  }
}
inline void nibbles256(const uint8_t* qs, uint8_t* q) {
  for (int j = 0; j < 4; ++j)
    for (int l = 0; l < 32; ++l) {
      q[64 * j + l] = qs[32 * j + l] & 15;
      q[64 * j + 32 + l] = qs[32 * j + l] >> 4;
    }
}
inline void q4_k(const uint8_t* b, DecodedRow r) {
  six_bit_scales(b, r);
  nibbles256(b + 16, r.q);
}
inline void q5_k(const uint8_t* b, DecodedRow r) {
  six_bit_scales(b, r);
  nibbles256(b + 48, r.q);
  for (int g = 0; g < 8; ++g)
    for (int l = 0; l < 32; ++l) r.q[32 * g + l] = static_cast<uint8_t>(r.q[32 * g + l] | (((b[16 + l] >> g) & 1) << 4));
}
inline void q6_k(const uint8_t* b, DecodedRow r) {
  const float d = f16(b + 208);
  for (int g = 0; g < 16; ++g) r.scale[g] = d * static_cast<float>(static_cast<int8_t>(b[192 + g]));
  for (int half = 0; half < 2; ++half) {
    const uint8_t *ql = b + 64 * half, *qh = b + 128 + 32 * half;
    uint8_t* q = r.q + 128 * half;
    for (int l = 0; l < 32; ++l) {
      q[l] = static_cast<uint8_t>((ql[l] & 15) | ((qh[l] & 3) << 4));
      q[l + 32] = static_cast<uint8_t>((ql[l + 32] & 15) | (((qh[l] >> 2) & 3) << 4));
      q[l + 64] = static_cast<uint8_t>((ql[l] >> 4) | (((qh[l] >> 4) & 3) << 4));
      q[l + 96] = static_cast<uint8_t>((ql[l + 32] >> 4) | (((qh[l] >> 6) & 3) << 4));
    }
  }
}

inline void iq4_xs(const uint8_t* b, DecodedRow r) {
  const float d = f16(b);
  uint16_t high;
  std::memcpy(&high, b + 2, 2);
  for (int g = 0; g < 8; ++g) {
    const int scale = ((b[4 + g / 2] >> (4 * (g % 2))) & 15) | (((high >> (2 * g)) & 3) << 4);
    r.scale[g] = d * static_cast<float>(scale - 32);
    nibbles32(b + 8 + 16 * g, r.q + 32 * g);
  }
}
// Half of the power of two named by the exponent byte: the table holds twice the values of the 4-bit floats.
inline void mxfp4(const uint8_t* b, DecodedRow r) {
  r.scale[0] = bits_to_float(b[0] < 2 ? 0x00200000u << b[0] : static_cast<uint32_t>(b[0] - 1) << 23);
  nibbles32(b + 1, r.q);
}

}  // namespace blocks
}  // namespace pellucid
