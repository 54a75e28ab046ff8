// Storing one token's keys and values in the paged cache, in its number type, and reading codes back as int16.
//
// Codes: a head's numbers are divided by one float32 scale. The products of attention are sums of code · code in 32 bits
// that never wrap: keys and queries have length ≤ kCodeLength, so |q · k| ≤ kCodeLength² (Cauchy–Schwarz); values are at most
// kValueLimit, and the weights of a split add up to at most kWeightSum (attention_codes.inl).

namespace {

using pellucid::kBlockTokens;
using pellucid::kFactorGroup;
using pellucid::kMaxHeadDim;
using pellucid::KVType;
using pellucid::KVView;

constexpr float kCodeMax = 32767.0f;
constexpr float kCodeLength = 46300.0f;  // + rounding of 576 numbers < √(2^31)
constexpr float kValueLimit = 8191.0f;
constexpr float kInt8Limit = 127.0f;
constexpr float kInt4Limit = 7.0f;
constexpr float kFactorLimit = 127.0f;  // 7 · 127 · √576 < kCodeLength

// Largest |x| of n numbers; NaN and infinity lie above all finite ones.
inline float largest(const float* x, int64_t n) {
  const I16 magnitude = iset1(0x7fffffff);
  I16 top = iset1(0);
  for (int64_t d = 0; d < n; d += 16) top = imax(top, iand(icast(vload(x + d)), magnitude));
  return bits_to_float(static_cast<uint32_t>(ireduce_max(top)));
}

// put(d, codes) for each 16 numbers: x / scale, |code| ≤ limit and, where `length` > 0, all of at most that length.
// Returns the scale: NaN if a number is not finite, 0 below 1e-30, where quotients would overflow.
template <class Put>
inline float code_head(const float* x, int64_t n, float limit, float length, Put put) {
  const float top = largest(x, n);
  const bool finite = std::isfinite(top), live = finite && top > 1e-30f;
  float factor = limit;
  if (live && length > 0.0f) {
    const V16 unit = vset1(1.0f / top);
    V16 squares = vset1(0.0f);
    for (int64_t d = 0; d < n; d += 16) {
      const V16 y = vmul(vload(x + d), unit);
      squares = vfma(y, y, squares);
    }
    const float most = length / std::sqrt(reduce_add(squares));
    factor = most < limit ? most : limit;
  }
  const V16 inverse = vset1(live ? factor / top : 0.0f);
  for (int64_t d = 0; d < n; d += 16) put(d, live ? iround(vmul(vload(x + d), inverse)) : iset1(0));
  return live ? top / factor : finite ? 0.0f : bits_to_float(0x7fc00000u);
}

// The same in 4 bits: a group of kFactorGroup numbers has a factor 0 … 127 besides; factors[g · 16].
float code_head4(const float* x, int64_t n, int16_t* codes, uint8_t* factors) {
  const float top = largest(x, n);
  const bool finite = std::isfinite(top), live = finite && top > 1e-30f;
  const float scale = live ? top / (kInt4Limit * kFactorLimit) : 0.0f;
  for (int64_t d = 0; d < n; d += kFactorGroup) {
    const float wanted = live ? std::ceil(largest(x + d, kFactorGroup) / (scale * kInt4Limit)) : 0.0f;
    const float factor = wanted < kFactorLimit ? wanted : kFactorLimit;
    factors[d / kFactorGroup * kBlockTokens] = static_cast<uint8_t>(factor);
    const V16 inverse = vset1(factor > 0.0f ? 1.0f / (scale * factor) : 0.0f);
    const I16 limit = iset1(7), lowest = iset1(-7);
    istore_narrow(codes + d, live ? imax(imin(iround(vmul(vload(x + d), inverse)), limit), lowest) : iset1(0));
  }
  return live ? scale : finite ? 0.0f : bits_to_float(0x7fc00000u);
}

// The largest power of two that divides n: the size of the blocks that `turn` mixes.
inline int64_t turn_block(int64_t n) { return n & -n; }

// Walsh–Hadamard transform of each block, without its factor 1 / √block: a number that stands out in every key is spread
// over the head, and codes of few bits lose less (QuaRot, Ashkboos et al. 2024). Turned q · turned k = block · (q · k).
void turn(const float* x, int64_t n, float* out) {
  std::memcpy(out, x, static_cast<size_t>(n) * 4);
  const int64_t block = turn_block(n);
  for (int64_t step = 1; step < block; step *= 2) {
    if (step >= 16) {
      for (int64_t at = 0; at < n; at += 2 * step)
        for (int64_t i = at; i < at + step; i += 16) {
          const V16 a = vload(out + i), b = vload(out + i + step);
          vstore(out + i, vadd(a, b));
          vstore(out + i + step, vsub(a, b));
        }
      continue;
    }
    for (int64_t at = 0; at < n; at += 2 * step)
      for (int64_t i = at; i < at + step; ++i) {
        const float a = out[i], b = out[i + step];
        out[i] = a + b;
        out[i + step] = a - b;
      }
  }
}
inline bool turned(KVType type) { return type == KVType::Int8 || type == KVType::Int4; }

template <class T>
bool store_floats(const KVView& kv, int64_t block, int64_t offset, int64_t head, const float* key, const float* value) {
  T* keys = reinterpret_cast<T*>(kv.key(block, head)) + offset;
  T* values = reinterpret_cast<T*>(kv.value(block, head)) + offset * kv.value_dim;
  bool finite = true;
  const auto store = [&](const float* x, int64_t n, T* out, int64_t step) {
    for (int64_t d = 0; d < n; d += 16) {
      if constexpr (sizeof(T) == 2) {
        uint16_t half[16];
        vstore_half(half, vload(x + d));
        for (int64_t i = 0; i < 16; ++i) {
          out[(d + i) * step] = half[i];
          finite &= (half[i] & 0x7c00) != 0x7c00;
        }
      } else {
        for (int64_t i = d; i < d + 16; ++i) {
          out[i * step] = x[i];
          finite &= std::isfinite(x[i]);
        }
      }
    }
  };
  store(key, kv.head_dim, keys, kBlockTokens);
  store(value, kv.value_dim, values, 1);
  return finite;
}

template <class T>
bool store_codes_as(const KVView& kv, int64_t block, int64_t offset, int64_t head, const float* key, const float* value) {
  constexpr bool kWide = sizeof(T) == 2;
  int16_t codes[kMaxHeadDim];
  T* keys = reinterpret_cast<T*>(kv.key(block, head)) + 2 * offset;
  T* values = reinterpret_cast<T*>(kv.value(block, head)) + (offset / 2) * 2 * kv.value_dim + offset % 2;
  float mixed[kMaxHeadDim];
  if (!kWide) turn(key, kv.head_dim, mixed);
  const auto keep = [&](int64_t d, I16 c) { istore_narrow(codes + d, c); };
  const float k = code_head(kWide ? key : mixed, kv.head_dim, kWide ? kCodeMax : kInt8Limit, kWide ? kCodeLength : 0.0f, keep);
  for (int64_t d = 0; d < kv.head_dim; d += 2, keys += 2 * kBlockTokens) {
    if constexpr (kWide) std::memcpy(keys, codes + d, 4);
    else keys[0] = static_cast<T>(codes[d]), keys[1] = static_cast<T>(codes[d + 1]);
  }
  float v;
  if constexpr (kWide) {
    // The other token of the pair may be stored by another worker meanwhile.
    v = code_head(value, kv.value_dim, kValueLimit, 0.0f, [&](int64_t d, I16 c) { istore_every_other(values + 2 * d, c); });
  } else {
    v = code_head(value, kv.value_dim, kInt8Limit, 0.0f, keep);
    for (int64_t d = 0; d < kv.value_dim; ++d) values[2 * d] = static_cast<T>(codes[d]);
  }
  kv.key_scales(block, head)[offset] = k;
  kv.value_scales(block, head)[offset] = v;
  return std::isfinite(k) && std::isfinite(v);
}

// Values of 32 numbers lie in 16 bytes, the second half in the high nibbles; a last 16 in 8 bytes likewise. So no two
// tokens, which two workers may be storing, share a byte.
bool store_codes4(const KVView& kv, int64_t block, int64_t offset, int64_t head, const float* key, const float* value) {
  int16_t codes[kMaxHeadDim];
  const auto both = [&](int64_t low, int64_t high) { return static_cast<uint8_t>((codes[low] + 8) | ((codes[high] + 8) << 4)); };
  float mixed[kMaxHeadDim];
  turn(key, kv.head_dim, mixed);
  const float k = code_head4(mixed, kv.head_dim, codes, kv.key_factors(block, head) + offset);
  uint8_t* keys = kv.key(block, head) + offset;
  for (int64_t d = 0; d < kv.head_dim; d += 2) keys[d / 2 * kBlockTokens] = both(d, d + 1);
  const float v = code_head4(value, kv.value_dim, codes, kv.value_factors(block, head) + offset);
  uint8_t* values = kv.value(block, head) + offset * kv.value_dim / 2;
  for (int64_t d = 0; d < kv.value_dim; d += 32) {
    const int64_t half = kv.value_dim - d < 32 ? 8 : 16;
    for (int64_t i = 0; i < half; ++i) values[d / 2 + i] = both(d + i, d + half + i);
  }
  kv.key_scales(block, head)[offset] = k;
  kv.value_scales(block, head)[offset] = v;
  return std::isfinite(k) && std::isfinite(v);
}

bool store_kv(const KVView& kv, int64_t block, int64_t offset, int64_t head, const float* key, const float* value) {
  switch (kv.type) {
    case KVType::Float32: return store_floats<float>(kv, block, offset, head, key, value);
    case KVType::Float16: return store_floats<uint16_t>(kv, block, offset, head, key, value);
    case KVType::Int16: return store_codes_as<int16_t>(kv, block, offset, head, key, value);
    case KVType::Int8: return store_codes_as<int8_t>(kv, block, offset, head, key, value);
    case KVType::Int4: return store_codes4(kv, block, offset, head, key, value);
  }
  return false;
}

inline void istore_pairs(int16_t* p, I16 a) { istore(reinterpret_cast<int32_t*>(p), a); }

void unpack_keys(const KVView& kv, int64_t block, int64_t head, int16_t* out) {
  const uint8_t* keys = kv.key(block, head);
  const uint8_t* factors = kv.type == KVType::Int4 ? kv.key_factors(block, head) : nullptr;
  for (int64_t p = 0; p < kv.head_dim / 2; ++p, out += 32) {
    if (kv.type == KVType::Int8) istore_pairs(out, iload_bytes(keys + 32 * p));
    else istore_pairs(out, imul_pairs(iload_nibbles(keys + 16 * p), iload_factors(factors + 2 * p / kFactorGroup * kBlockTokens)));
  }
}

void unpack_values(const KVView& kv, int64_t block, int64_t head, int16_t* out) {
  const int64_t dim = kv.value_dim;
  const uint8_t* values = kv.value(block, head);
  if (kv.type == KVType::Int8) {
    for (int64_t i = 0; i < kBlockTokens * dim; i += 32) istore_pairs(out + i, iload_bytes(values + i));
    return;
  }
  const uint8_t* factors = kv.value_factors(block, head);
  for (int64_t t = 0; t < kBlockTokens; t += 2, out += 2 * dim) {
    const uint8_t *a = values + t * dim / 2, *b = a + dim / 2;
    const auto factor = [&](int64_t d) {
      const uint8_t* f = factors + d / kFactorGroup * kBlockTokens + t;
      return iset1(f[0] | (f[1] << 16));
    };
    int64_t d = 0;
    for (; d + 32 <= dim; d += 32) {
      I16 low, high;
      iload_nibble_rows(a + d / 2, b + d / 2, low, high);
      istore_pairs(out + 2 * d, imul_pairs(low, factor(d)));
      istore_pairs(out + 2 * d + 32, imul_pairs(high, factor(d + 16)));
    }
    for (int64_t i = 0; d + i < dim; ++i) {  // a last 16
      const int shift = i < 8 ? 0 : 4;
      const uint8_t* f = factors + d / kFactorGroup * kBlockTokens + t;
      out[2 * (d + i)] = static_cast<int16_t>((((a[d / 2 + i % 8] >> shift) & 15) - 8) * f[0]);
      out[2 * (d + i) + 1] = static_cast<int16_t>((((b[d / 2 + i % 8] >> shift) & 15) - 8) * f[1]);
    }
  }
}

}  // namespace
