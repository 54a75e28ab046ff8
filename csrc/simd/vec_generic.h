// Sixteen floats and sixteen int32 as plain arrays: correct on any machine, and the definition of the other two.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "half.h"

namespace {

constexpr int kMaxRows = 4;
constexpr int kMaxQueries = 4;

struct V16 {
  float f[16];
};
struct I16 {
  int32_t i[16];
};

template <class F>
inline V16 map16(F f) {
  V16 r;
  for (int k = 0; k < 16; ++k) r.f[k] = f(k);
  return r;
}
template <class F>
inline I16 imap16(F f) {
  I16 r;
  for (int k = 0; k < 16; ++k) r.i[k] = f(k);
  return r;
}

inline V16 vload(const float* p) { return map16([&](int k) { return p[k]; }); }
inline void vstore(float* p, V16 a) { std::memcpy(p, a.f, sizeof a.f); }
inline V16 vset1(float x) { return map16([&](int) { return x; }); }
inline V16 vadd(V16 a, V16 b) { return map16([&](int k) { return a.f[k] + b.f[k]; }); }
inline V16 vsub(V16 a, V16 b) { return map16([&](int k) { return a.f[k] - b.f[k]; }); }
inline V16 vmul(V16 a, V16 b) { return map16([&](int k) { return a.f[k] * b.f[k]; }); }
inline V16 vdiv(V16 a, V16 b) { return map16([&](int k) { return a.f[k] / b.f[k]; }); }
// As the x86 instructions: the second operand when either is NaN.
inline V16 vmax(V16 a, V16 b) { return map16([&](int k) { return a.f[k] > b.f[k] ? a.f[k] : b.f[k]; }); }
inline V16 vmin(V16 a, V16 b) { return map16([&](int k) { return a.f[k] < b.f[k] ? a.f[k] : b.f[k]; }); }
inline V16 vfma(V16 a, V16 b, V16 c) { return map16([&](int k) { return std::fma(a.f[k], b.f[k], c.f[k]); }); }
inline V16 vselect_lt(V16 a, V16 b, V16 x, V16 y) { return map16([&](int k) { return a.f[k] < b.f[k] ? x.f[k] : y.f[k]; }); }
inline V16 vload_half(const uint16_t* p) { return map16([&](int k) { return half_to_float(p[k]); }); }
inline void vstore_half(uint16_t* p, V16 a) {
  for (int k = 0; k < 16; ++k) p[k] = float_to_half(a.f[k]);
}
inline V16 vload_bf16(const uint16_t* p) { return map16([&](int k) { return bf16_to_float(p[k]); }); }

inline I16 iset1(int32_t x) { return imap16([&](int) { return x; }); }
inline I16 iadd(I16 a, I16 b) { return imap16([&](int k) { return a.i[k] + b.i[k]; }); }
inline I16 isub(I16 a, I16 b) { return imap16([&](int k) { return a.i[k] - b.i[k]; }); }
inline I16 iand(I16 a, I16 b) { return imap16([&](int k) { return a.i[k] & b.i[k]; }); }
inline I16 imax(I16 a, I16 b) { return imap16([&](int k) { return a.i[k] > b.i[k] ? a.i[k] : b.i[k]; }); }
inline I16 imin(I16 a, I16 b) { return imap16([&](int k) { return a.i[k] < b.i[k] ? a.i[k] : b.i[k]; }); }
template <int S>
inline I16 ishl(I16 a) { return imap16([&](int k) { return static_cast<int32_t>(static_cast<uint32_t>(a.i[k]) << S); }); }
inline void istore(int32_t* p, I16 a) { std::memcpy(p, a.i, sizeof a.i); }
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
inline I16 icast(V16 a) {
  I16 r;
  std::memcpy(r.i, a.f, sizeof r.i);
  return r;
}
inline V16 vcast(I16 a) {
  V16 r;
  std::memcpy(r.f, a.i, sizeof r.f);
  return r;
}
inline I16 iround(V16 a) {
  // As the x86 instruction: what does not fit becomes the lowest int32.
  return imap16([&](int k) {
    return a.f[k] >= -2147483648.0f && a.f[k] < 2147483648.0f ? static_cast<int32_t>(std::nearbyintf(a.f[k])) : INT32_MIN;
  });
}
inline V16 vfromint(I16 a) { return map16([&](int k) { return static_cast<float>(a.i[k]); }); }

// ---- weight codes of 16 rows × 32 columns: byte 64·j + 4·row + (column mod 4), j = column / 4 ---------------------

struct Codes {
  uint8_t w[512];
};

inline void unpack_nibbles(Codes& c, const uint8_t* p) {
  for (int v = 0; v < 4; ++v)
    for (int i = 0; i < 64; ++i) {
      c.w[128 * v + i] = p[64 * v + i] & 15;
      c.w[128 * v + 64 + i] = p[64 * v + i] >> 4;
    }
}
inline void add_plane(Codes& c, const uint8_t* plane, char value) {
  for (int i = 0; i < 512; ++i) c.w[i] = static_cast<uint8_t>(c.w[i] + ((plane[i / 8] >> (i % 8)) & 1) * value);
}
inline void look_up(Codes& c, const uint8_t* table16) {
  for (int i = 0; i < 512; ++i) c.w[i] = table16[c.w[i]];
}
inline void load_bytes(Codes& c, const uint8_t* p) { std::memcpy(c.w, p, 512); }

// ---- activations of 32 columns: int16 in natural order -----------------------------------------------------------

inline void store_codes(uint8_t* dst, I16 a0, I16 a1) {
  int16_t out[32];
  for (int k = 0; k < 16; ++k) {
    out[k] = static_cast<int16_t>(a0.i[k]);
    out[k + 16] = static_cast<int16_t>(a1.i[k]);
  }
  std::memcpy(dst, out, 64);
}

template <int J0, int J1>
inline I16 dot(const Codes& c, const uint8_t* a) {
  int16_t act[32];
  std::memcpy(act, a, 64);
  I16 s = iset1(0);
  for (int j = J0; j < J1; ++j)
    for (int row = 0; row < 16; ++row)
      for (int k = 0; k < 4; ++k) s.i[row] += static_cast<int32_t>(c.w[64 * j + 4 * row + k]) * act[4 * j + k];
  return s;
}

// ---- activations of 32 columns as 32 bytes ------------------------------------------------------------------------

inline void store_bytes(uint8_t* dst, I16 a0, I16 a1) {
  for (int k = 0; k < 16; ++k) {
    dst[k] = static_cast<uint8_t>(a0.i[k]);
    dst[k + 16] = static_cast<uint8_t>(a1.i[k]);
  }
}

template <bool LARGE, int J0, int J1>
inline I16 dot_bytes(const Codes& c, const uint8_t* a) {
  int8_t act[32];
  std::memcpy(act, a, 32);
  I16 s = iset1(0);
  for (int j = J0; j < J1; ++j)
    for (int row = 0; row < 16; ++row)
      for (int k = 0; k < 4; ++k) s.i[row] += static_cast<int32_t>(c.w[64 * j + 4 * row + k]) * act[4 * j + k];
  return s;
}

// ---- attention codes: int16 pairs in 32-bit lanes ----------------------------------------------------------------

struct Pairs {
  int16_t i[32];
};
inline Pairs pairs_of(I16 a) {
  Pairs p;
  std::memcpy(p.i, a.i, sizeof p.i);
  return p;
}
inline I16 lanes_of(const Pairs& p) { return imap16([&](int k) {
  int32_t lane;
  std::memcpy(&lane, p.i + 2 * k, 4);
  return lane;
}); }
inline I16 iload(const void* p) {
  I16 r;
  std::memcpy(r.i, p, sizeof r.i);
  return r;
}
inline I16 ispread(const void* p) {
  int32_t word;
  std::memcpy(&word, p, 4);
  return iset1(word);
}
// acc + a.low · b.low + a.high · b.high in each lane, modulo 2^32.
inline I16 idot_pairs(I16 acc, I16 a, I16 b) {
  const Pairs x = pairs_of(a), y = pairs_of(b);
  return imap16([&](int k) {
    const uint32_t low = static_cast<uint32_t>(x.i[2 * k] * y.i[2 * k]);
    const uint32_t high = static_cast<uint32_t>(x.i[2 * k + 1] * y.i[2 * k + 1]);
    return static_cast<int32_t>(static_cast<uint32_t>(acc.i[k]) + low + high);
  });
}
inline I16 imul_pairs(I16 a, I16 b) {
  const Pairs x = pairs_of(a), y = pairs_of(b);
  Pairs r;
  for (int k = 0; k < 32; ++k) r.i[k] = static_cast<int16_t>(x.i[k] * y.i[k]);
  return lanes_of(r);
}
inline void istore_narrow(int16_t* p, I16 a) {
  for (int k = 0; k < 16; ++k) p[k] = static_cast<int16_t>(a.i[k]);
}
// Lane i: v[i] reduced.
inline I16 ireduce_add_each(const I16 (&v)[16]) {
  int32_t r[16];
  for (int k = 0; k < 16; ++k) r[k] = ireduce_add(v[k]);
  return iload(r);
}
inline I16 ireduce_max_each(const I16 (&v)[16]) {
  int32_t r[16];
  for (int k = 0; k < 16; ++k) r[k] = ireduce_max(v[k]);
  return iload(r);
}
// a0 b0 a1 b1 …
inline void izip(I16 a, I16 b, I16& low, I16& high) {
  int32_t x[16], y[16], r[32];
  istore(x, a);
  istore(y, b);
  for (int k = 0; k < 16; ++k) r[2 * k] = x[k], r[2 * k + 1] = y[k];
  low = iload(r);
  high = iload(r + 16);
}
// The low halves of the lanes into every other number from p on; what lies between is not touched.
inline void istore_every_other(int16_t* p, I16 a) {
  int16_t narrow[16];
  istore_narrow(narrow, a);
  for (int k = 0; k < 16; ++k) p[2 * k] = narrow[k];
}
inline I16 iload_bytes(const void* p) {  // 32 signed bytes
  Pairs r;
  for (int k = 0; k < 32; ++k) r.i[k] = static_cast<const int8_t*>(p)[k];
  return lanes_of(r);
}
inline I16 iload_nibbles(const void* p) {  // 16 bytes of two codes 0 … 15, minus 8
  Pairs r;
  for (int k = 0; k < 16; ++k) {
    const uint8_t byte = static_cast<const uint8_t*>(p)[k];
    r.i[2 * k] = static_cast<int16_t>((byte & 15) - 8);
    r.i[2 * k + 1] = static_cast<int16_t>((byte >> 4) - 8);
  }
  return lanes_of(r);
}
// Two rows of 16 bytes → pairs (row a, row b) of the low and of the high nibbles, minus 8.
inline void iload_nibble_rows(const void* a, const void* b, I16& low, I16& high) {
  Pairs l, h;
  for (int k = 0; k < 16; ++k) {
    const uint8_t x = static_cast<const uint8_t*>(a)[k], y = static_cast<const uint8_t*>(b)[k];
    l.i[2 * k] = static_cast<int16_t>((x & 15) - 8);
    l.i[2 * k + 1] = static_cast<int16_t>((y & 15) - 8);
    h.i[2 * k] = static_cast<int16_t>((x >> 4) - 8);
    h.i[2 * k + 1] = static_cast<int16_t>((y >> 4) - 8);
  }
  low = lanes_of(l);
  high = lanes_of(h);
}
inline I16 iload_lanes(const void* p) {  // 16 unsigned bytes
  return imap16([&](int k) { return static_cast<int32_t>(static_cast<const uint8_t*>(p)[k]); });
}
inline I16 imul(I16 a, I16 b) {
  return imap16([&](int k) { return static_cast<int32_t>(static_cast<uint32_t>(a.i[k]) * static_cast<uint32_t>(b.i[k])); });
}
inline I16 iload_factors(const void* p) {  // 16 unsigned bytes, each in both halves of its lane
  return imap16([&](int k) {
    const int32_t byte = static_cast<const uint8_t*>(p)[k];
    return byte | (byte << 16);
  });
}

// Sum of the lanes, as a fixed tree: 8 + 8, 4 + 4, 2 + 2, 1 + 1.
inline float reduce_add(V16 a) {
  for (int width = 8; width >= 1; width /= 2)
    for (int k = 0; k < width; ++k) a.f[k] = a.f[k] + a.f[k + width];
  return a.f[0];
}
inline float reduce_max(V16 a) {
  for (int width = 8; width >= 1; width /= 2)
    for (int k = 0; k < width; ++k) a.f[k] = a.f[k] > a.f[k + width] ? a.f[k] : a.f[k + width];
  return a.f[0];
}

}  // namespace
