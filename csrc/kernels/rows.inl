// Operations on one row: normalisation, quantisation, activation, rotation, embedding look-up.

namespace {

using pellucid::Activation;
using pellucid::Code;
using pellucid::Format;
using pellucid::QuantizedRow;

inline V16 vload_tail(const float* x, int64_t count) {
  float f[16] = {};
  std::memcpy(f, x, static_cast<size_t>(count) * 4);
  return vload(f);
}

// Four accumulators of sixteen lanes, added in one order; a tail of fewer than 16 goes through zeros.
float sum_of_squares(const float* x, int64_t n) {
  V16 s0 = vset1(0.0f), s1 = s0, s2 = s0, s3 = s0;
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    const V16 a = vload(x + i), b = vload(x + i + 16), c = vload(x + i + 32), d = vload(x + i + 48);
    s0 = vfma(a, a, s0);
    s1 = vfma(b, b, s1);
    s2 = vfma(c, c, s2);
    s3 = vfma(d, d, s3);
  }
  for (; i < n; i += 16) {
    const V16 a = i + 16 <= n ? vload(x + i) : vload_tail(x + i, n - i);
    s0 = vfma(a, a, s0);
  }
  return reduce_add(vadd(vadd(s0, s1), vadd(s2, s3)));
}

template <bool ADD>
void rms_norm(const float* x, const float* weight, float eps, int64_t n, float* out) {
  const float inverse = 1.0f / std::sqrt(sum_of_squares(x, n) / static_cast<float>(n) + eps);
  const V16 v = vset1(inverse);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const V16 y = vmul(vmul(vload(x + i), v), vload(weight + i));
    vstore(out + i, ADD ? vadd(vload(out + i), y) : y);
  }
  for (; i < n; ++i) {
    const float y = (x[i] * inverse) * weight[i];
    out[i] = ADD ? out[i] + y : y;
  }
}
void rms_norm_row(const float* x, const float* w, float eps, int64_t n, float* out) { rms_norm<false>(x, w, eps, n, out); }
void rms_norm_add_row(const float* x, const float* w, float eps, int64_t n, float* r) { rms_norm<true>(x, w, eps, n, r); }

// Where the parts of a quantised row lie, to be written.
template <int BYTES>
struct RowParts {
  uint8_t* codes;
  float *scale, *fsum32, *fsum16;
  int32_t *sum32, *sum16;
  RowParts(uint8_t* out, int64_t k) : codes(out) {
    const QuantizedRow<BYTES> row(out, k);
    scale = const_cast<float*>(row.scale());
    sum32 = const_cast<int32_t*>(row.sum32());
    fsum32 = const_cast<float*>(row.fsum32());
    sum16 = const_cast<int32_t*>(row.sum16());
    fsum16 = const_cast<float*>(row.fsum16());
  }
};

// Codes of 32 numbers times `inverse`.
template <int BYTES>
inline void round_group(const float* x, V16 inverse, uint8_t* codes, I16& q0, I16& q1) {
  const I16 limit = iset1(QuantizedRow<BYTES>::kLimit), lowest = iset1(-QuantizedRow<BYTES>::kLimit);
  q0 = imax(imin(iround(vmul(vload(x), inverse)), limit), lowest);
  q1 = imax(imin(iround(vmul(vload(x + 16), inverse)), limit), lowest);
  if constexpr (BYTES == 2)
    store_codes(codes, q0, q1);
  else
    store_bytes(codes, q0, q1);
}

// Sixteen groups from group g on, the same numbers as one by one: their maxima and sums are taken across all together.
template <int BYTES>
inline void quantize_groups(const float* x, int64_t g, const RowParts<BYTES>& row) {
  const V16 limit = vset1(static_cast<float>(QuantizedRow<BYTES>::kLimit)), zero = vset1(0.0f);
  const I16 magnitude = iset1(0x7fffffff);
  I16 a[16], b[16];
  for (int i = 0; i < 16; ++i) {
    const float* from = x + 32 * (g + i);
    a[i] = imax(iand(icast(vload(from)), magnitude), iand(icast(vload(from + 16)), magnitude));
  }
  const V16 top = vcast(ireduce_max_each(a)), least = vset1(1e-30f);
  alignas(64) float inverse[16];
  vstore(inverse, vselect_lt(least, top, vdiv(limit, top), zero));
  const V16 finite = vselect_lt(least, top, vdiv(top, limit), zero);
  const V16 scale = vselect_lt(top, vset1(bits_to_float(0x7f800000u)), finite, vset1(bits_to_float(0x7fc00000u)));
  for (int i = 0; i < 16; ++i)
    round_group<BYTES>(x + 32 * (g + i), vset1(inverse[i]), row.codes + 32 * BYTES * (g + i), a[i], b[i]);
  const I16 sa = ireduce_add_each(a), sb = ireduce_add_each(b), sum = iadd(sa, sb);
  vstore(row.scale + g, scale);
  istore(row.sum32 + g, sum);
  vstore(row.fsum32 + g, vmul(scale, vfromint(sum)));
  I16 low, high;
  izip(sa, sb, low, high);
  istore(row.sum16 + 2 * g, low);
  istore(row.sum16 + 2 * g + 16, high);
  izip(icast(vmul(scale, vfromint(sa))), icast(vmul(scale, vfromint(sb))), low, high);
  vstore(row.fsum16 + 2 * g, vcast(low));
  vstore(row.fsum16 + 2 * g + 16, vcast(high));
}

template <int BYTES>
void quantize_row(const float* x, int64_t k, uint8_t* out) {
  constexpr float kCodeLimit = static_cast<float>(QuantizedRow<BYTES>::kLimit);
  const RowParts<BYTES> row(out, k);
  const I16 magnitude = iset1(0x7fffffff);
  int64_t g = 0;
  for (; g + 16 <= k / 32; g += 16) quantize_groups<BYTES>(x, g, row);
  for (; g < k / 32; ++g) {
    const V16 x0 = vload(x + 32 * g), x1 = vload(x + 32 * g + 16);
    // Bits of |x| compare as integers, and NaN and infinity lie above all finite numbers.
    const int32_t top = ireduce_max(imax(iand(icast(x0), magnitude), iand(icast(x1), magnitude)));
    const float amax = bits_to_float(static_cast<uint32_t>(top));
    // Below 1e-30 the quotient would overflow; such a group is zero for any practical purpose.
    const bool live = amax > 1e-30f;
    I16 q0, q1;
    round_group<BYTES>(x + 32 * g, vset1(live ? kCodeLimit / amax : 0.0f), out + 32 * BYTES * g, q0, q1);
    const int32_t a = ireduce_add(q0), b = ireduce_add(q1);
    // Not finite: poison the scale, so that the row's outputs are NaN and the request ends with an error.
    const float s = top >= 0x7f800000 ? bits_to_float(0x7fc00000u) : live ? amax / kCodeLimit : 0.0f;
    row.scale[g] = s;
    row.sum32[g] = a + b;
    row.fsum32[g] = s * static_cast<float>(a + b);
    row.sum16[2 * g] = a;
    row.sum16[2 * g + 1] = b;
    row.fsum16[2 * g] = s * static_cast<float>(a);
    row.fsum16[2 * g + 1] = s * static_cast<float>(b);
  }
}

inline V16 activate(Activation kind, V16 x) {
  switch (kind) {
    case Activation::GeluTanh: return vgelu_tanh(x);
    case Activation::Gelu: return vgelu(x);
    case Activation::Relu: return vmax(vset1(0.0f), x);  // in this order NaN stays NaN
    default: return vsilu(x);
  }
}

// activation(gate) · up, or activation(gate) alone where `up` is null.
void gate_row(const float* gate, const float* up, Activation kind, int64_t n, float* out) {
  const auto one = [&](V16 g, V16 u) {
    if (kind == Activation::SwigluClamped) return vswiglu_clamped(g, u);
    return up ? vmul(activate(kind, g), u) : activate(kind, g);
  };
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) vstore(out + i, one(vload(gate + i), up ? vload(up + i) : vset1(0.0f)));
  if (i < n) {
    float y[16];
    vstore(y, one(vload_tail(gate + i, n - i), up ? vload_tail(up + i, n - i) : vset1(0.0f)));
    std::memcpy(out + i, y, static_cast<size_t>(n - i) * 4);
  }
}

float sum_of(const float* x, int64_t n) {
  V16 s = vset1(0.0f);
  for (int64_t i = 0; i < n; i += 16) s = vadd(s, i + 16 <= n ? vload(x + i) : vload_tail(x + i, n - i));
  return reduce_add(s);
}

// (x − mean) / sqrt(variance + eps) · weight + bias, the variance from the differences (Ba et al. 2016).
void layer_norm_row(const float* x, const float* weight, const float* bias, float eps, int64_t n, float* out) {
  const float mean = sum_of(x, n) / static_cast<float>(n);
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] - mean;
  const float inverse = 1.0f / std::sqrt(sum_of_squares(out, n) / static_cast<float>(n) + eps);
  for (int64_t i = 0; i < n; ++i) {
    const float y = (out[i] * inverse) * weight[i];
    out[i] = bias ? y + bias[i] : y;
  }
}

// (x[i], x[i + half]) turned by the angle of pair i: the half-split form of RoPE.
void rotate_row(float* x, const float* cosine, const float* sine, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half];
    x[i] = a * cosine[i] - b * sine[i];
    x[i + half] = b * cosine[i] + a * sine[i];
  }
}

// One row of a packed matrix as floats, times `factor`: the embedding look-up.
void decode_row(const Format& f, const uint8_t* panel, int64_t columns, int row, float factor, float* out) {
  if (f.is_float()) {
    for (int64_t k = 0; k < columns; ++k) {
      const int64_t at = k * 16 + row;
      float w;
      if (f.code == Code::Float32) {
        std::memcpy(&w, panel + 4 * at, 4);
      } else {
        uint16_t h;
        std::memcpy(&h, panel + 2 * at, 2);
        w = f.code == Code::Float16 ? half_to_float(h) : bf16_to_float(h);
      }
      out[k] = w * factor;
    }
    return;
  }
  const uint8_t* scales = panel + f.codes_bytes(columns);
  const uint8_t* minima = scales + f.scales_bytes(columns);
  const auto number = [&](const uint8_t* base, int64_t group) {
    float w;
    uint16_t h;
    if (f.wide_scale) return std::memcpy(&w, base + (group * 16 + row) * 4, 4), w;
    return std::memcpy(&h, base + (group * 16 + row) * 2, 2), half_to_float(h);
  };
  const int planes = f.code == Code::Bits5 ? 1 : f.code == Code::Bits6 ? 2 : 0;
  for (int64_t k = 0; k < columns; ++k) {
    const uint8_t* unit = panel + (k / 32) * static_cast<int64_t>(f.unit_bytes());
    const int64_t j = (k % 32) / 4, byte = 4 * row + k % 4;
    int q;
    if (f.code == Code::Bits8) {
      q = unit[64 * j + byte];
    } else {
      q = (unit[64 * (j / 2) + byte] >> (4 * (j & 1))) & 15;
      for (int p = 0; p < planes; ++p) q += ((unit[256 + 64 * p + 8 * j + byte / 8] >> (byte % 8)) & 1) << (4 + p);
      if (f.code == Code::Table4) q = f.table[q];
    }
    const float s = number(scales, k / f.group);
    const float w = f.affine() ? s * static_cast<float>(q) + number(minima, k / f.group)
                               : s * static_cast<float>(q - (1 << f.center_log2));
    out[k] = w * factor;
  }
}

}  // namespace
