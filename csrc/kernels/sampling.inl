// Passes over a row of logits, sixteen at a time; see sampling_table.h.

namespace {

using pellucid::Cut;
using pellucid::kLogitsBlock;
using pellucid::Spread;
using pellucid::TokenSet;

constexpr float kNothing = -std::numeric_limits<float>::infinity();

// e^x of each x ≤ 0; about 4e-14 for all x ≤ −30.8, which rounds to no weight. Products and sums are rounded one by one,
// so that any machine can repeat it. Range reduction and polynomial as vexp (Cephes' expf, Moshier 1992).
inline void exponentials(V16 (&x)[kAtOnce]) {
  constexpr float kCoefficients[] = {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
  const V16 magic = vset1(12582912.0f);  // 1.5 · 2^23: adding it rounds to the nearest whole number
  V16 n[kAtOnce], p[kAtOnce];
  for (V16& v : x) v = vmax(v, vset1(-30.8f));
  for (int k = 0; k < kAtOnce; ++k) n[k] = vsub(vadd(vmul(x[k], vset1(1.44269504088896341f)), magic), magic);
  for (int k = 0; k < kAtOnce; ++k) x[k] = vsub(x[k], vmul(n[k], vset1(0.693359375f)));
  for (int k = 0; k < kAtOnce; ++k) x[k] = vadd(x[k], vmul(n[k], vset1(2.12194440e-4f)));
  for (V16& v : p) v = vset1(1.9875691500e-4f);
  for (const float coefficient : kCoefficients)
    for (int k = 0; k < kAtOnce; ++k) p[k] = vadd(vmul(p[k], x[k]), vset1(coefficient));
  for (int k = 0; k < kAtOnce; ++k) p[k] = vadd(vmul(p[k], vmul(x[k], x[k])), vadd(x[k], vset1(1.0f)));
  for (int k = 0; k < kAtOnce; ++k) x[k] = vcast(iadd(icast(p[k]), ishl<23>(iround(n[k]))));
}

inline uint32_t first_lanes(int64_t count) { return count >= 16 ? 0xFFFFu : (1u << count) - 1; }

// x[i …], with −∞ for what lies past the end.
inline V16 load_logits(const float* x, int64_t i, int64_t n) {
  if (i + 16 <= n) return vload(x + i);
  float lanes[16];
  for (int64_t k = 0; k < 16; ++k) lanes[k] = i + k < n ? x[i + k] : kNothing;
  return vload(lanes);
}

// The block from i on; where it is the last and not whole, a copy with −∞ for what is missing.
inline const float* whole_block(const float* x, int64_t i, int64_t n, float* copy) {
  if (i + kLogitsBlock <= n) return x + i;
  for (int64_t k = 0; k < kLogitsBlock; ++k) copy[k] = i + k < n ? x[i + k] : kNothing;
  return copy;
}

float block_maxima(const float* x, int64_t n, float* maxima) {
  float last[kLogitsBlock];
  I16 magnitude = iset1(0);
  float largest = kNothing;
  for (int64_t i = 0, b = 0; i < n; i += kLogitsBlock, ++b) {
    const float* block = whole_block(x, i, n, last);
    V16 top = vset1(kNothing);
    for (int64_t k = 0; k < kLogitsBlock; k += 16) {
      const V16 value = vload(block + k);
      magnitude = imax(magnitude, iand(icast(value), iset1(0x7FFFFFFF)));
      top = vmax(top, value);
    }
    maxima[b] = max_lane(top);
    largest = maxima[b] > largest ? maxima[b] : largest;
  }
  int32_t bits[16];
  istore(bits, magnitude);
  for (const int32_t b : bits)
    if (b > 0x7F800000) return std::numeric_limits<float>::quiet_NaN();
  return largest;
}

uint64_t weights(const float* x, const float* maxima, int64_t n, float largest, float temperature, float* w) {
  float last[kLogitsBlock];
  const V16 top = vset1(largest), divisor = vset1(temperature);
  WeightSum sum;
  for (int64_t i = 0, b = 0; i < n; i += kLogitsBlock, ++b) {
    if (maxima != nullptr && (maxima[b] - largest) / temperature < -30.8f) {
      for (int64_t k = 0; w != nullptr && k < kLogitsBlock; ++k) w[i + k] = 0.0f;
      continue;
    }
    const float* block = whole_block(x, i, n, last);
    for (int64_t k = 0; k < kLogitsBlock; k += 16 * kAtOnce) {
      V16 exponents[kAtOnce];
      for (int j = 0; j < kAtOnce; ++j) exponents[j] = vsub(vload(block + k + 16 * j), top);
      if (temperature != 1.0f)
        for (V16& exponent : exponents) exponent = vdiv(exponent, divisor);
      exponentials(exponents);
      for (int j = 0; j < kAtOnce; ++j) {
        if (w != nullptr) vstore(w + i + k + 16 * j, exponents[j]);
        sum.add(exponents[j]);
      }
    }
  }
  return sum.total();
}

Spread spread(const float* x, const float* maxima, int64_t n, float largest, float temperature) {
  constexpr int64_t kFlush = 64;  // blocks whose terms are added up in float32
  float last[kLogitsBlock], lanes[16];
  const V16 top = vset1(largest), divisor = vset1(temperature), zero = vset1(0.0f), least = vset1(-30.8f);
  WeightSum weight;
  double moment = 0.0;
  V16 terms = zero;
  const int64_t blocks = pellucid::logits_blocks(n);
  for (int64_t b = 0; b < blocks; ++b) {
    if (!((maxima[b] - largest) / temperature < -30.8f)) {
      const float* block = whole_block(x, b * kLogitsBlock, n, last);
      for (int64_t k = 0; k < kLogitsBlock; k += 16 * kAtOnce) {
        V16 exponents[kAtOnce], weights[kAtOnce];
        for (int j = 0; j < kAtOnce; ++j) exponents[j] = vsub(vload(block + k + 16 * j), top);
        if (temperature != 1.0f)
          for (V16& exponent : exponents) exponent = vdiv(exponent, divisor);
        for (int j = 0; j < kAtOnce; ++j) weights[j] = exponents[j];
        exponentials(weights);
        for (int j = 0; j < kAtOnce; ++j) {
          weight.add(weights[j]);
          terms = vadd(terms, vmul(weights[j], vmax(exponents[j], least)));  // −∞ for an impossible token
        }
      }
    }
    if (b % kFlush == kFlush - 1 || b == blocks - 1) {
      vstore(lanes, terms);
      for (const float lane : lanes) moment -= static_cast<double>(lane);
      terms = zero;
    }
  }
  return {weight.total(), moment};
}

uint64_t weight_from(const float* x, const float* w, int64_t n, float low, int64_t* count) {
  const V16 bound = vset1(low);
  WeightSum sum;
  *count = 0;
  for (int64_t i = 0; i < n; i += 16) {
    const uint32_t mask = mask_not_less(load_logits(x, i, n), bound) & first_lanes(n - i);
    *count += std::popcount(mask);
    if (mask != 0) sum.add(vload(w + i), mask);
  }
  return sum.total();
}

Cut cut(const float* x, const float* w, const int32_t* ids, int64_t n, float low, float high, TokenSet out) {
  const V16 lower = vset1(low), upper = vset1(high);
  alignas(64) int32_t places[16];
  for (int32_t k = 0; k < 16; ++k) places[k] = k;
  I16 own = iload(places);
  WeightSum above, between;
  int64_t count_above = 0, count = 0;
  for (int64_t i = 0; i < n; i += 16, own = iadd(own, iset1(16))) {
    const V16 value = load_logits(x, i, n), weight = vload(w + i);
    const uint32_t in = first_lanes(n - i), over = mask_greater(value, upper) & in;
    const uint32_t inside = mask_not_less(value, lower) & in & ~over;
    if (over != 0) {
      above.add(weight, over);
      count_above += std::popcount(over);
    }
    if (inside != 0) {
      between.add(weight, inside);
      const I16 id = ids == nullptr ? own : iload(ids + i);
      compact(out.logits + count, value, inside);
      compact(out.weights + count, weight, inside);
      compact(out.ids + count, id, inside);
      count += std::popcount(inside);
    }
  }
  return {above.total(), count_above, between.total(), count};
}

int64_t count_above(const float* x, const float* maxima, int64_t n, float value) {
  int64_t count = 0;
  for (int64_t i = 0, b = 0; i < n; i += kLogitsBlock, ++b) {
    if (!(maxima[b] > value)) continue;
    for (int64_t k = i; k < i + kLogitsBlock; k += 16)
      count += std::popcount(mask_greater(load_logits(x, k, n), vset1(value)));
  }
  return count;
}

int64_t ids_from(const float* x, const float* maxima, int64_t n, float low, int32_t* ids, int64_t room) {
  int64_t count = 0;
  for (int64_t i = 0, b = 0; i < n; i += kLogitsBlock, ++b) {
    if (!(maxima[b] >= low)) continue;
    for (int64_t k = i; k < i + kLogitsBlock && k < n; k += 16) {
      uint32_t mask = mask_not_less(load_logits(x, k, n), vset1(low)) & first_lanes(n - k);
      if (count + std::popcount(mask) > room) return -1;
      for (; mask != 0; mask &= mask - 1) ids[count++] = static_cast<int32_t>(k + std::countr_zero(mask));
    }
  }
  return count;
}

}  // namespace

#define PELLUCID_SAMPLING {block_maxima, weights, spread, weight_from, cut, count_above, ids_from}
