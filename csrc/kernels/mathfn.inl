// Elementary functions on sixteen lanes: the same operations in the same order on every instruction set.

namespace {

// e^x, relative error below 2 units in the last place; 0 below −87.3, infinity above 88.7.
// Range reduction x = n·ln 2 + r, |r| ≤ ln 2 / 2, then the polynomial of Cephes' expf (Moshier 1992).
inline V16 vexp(V16 x) {
  const V16 low = vset1(-87.33654f);
  const V16 magic = vset1(12582912.0f);  // 1.5 · 2^23: adding it rounds to the nearest whole number
  const V16 clamped = vmax(low, vmin(vset1(88.72283f), x));  // in this order NaN stays NaN
  const V16 n = vsub(vadd(vmul(clamped, vset1(1.44269504088896341f)), magic), magic);
  V16 r = vfma(n, vset1(-0.693359375f), clamped);
  r = vfma(n, vset1(2.12194440e-4f), r);
  V16 p = vset1(1.9875691500e-4f);
  p = vfma(p, r, vset1(1.3981999507e-3f));
  p = vfma(p, r, vset1(8.3334519073e-3f));
  p = vfma(p, r, vset1(4.1665795894e-2f));
  p = vfma(p, r, vset1(1.6666665459e-1f));
  p = vfma(p, r, vset1(5.0000001201e-1f));
  p = vfma(p, vmul(r, r), vadd(r, vset1(1.0f)));
  // 2^n in two factors, since n = 128 has no exponent of its own.
  const I16 whole = iround(n);
  const I16 first = imin(whole, iset1(127));
  const V16 two_first = vcast(ishl<23>(iadd(first, iset1(127))));
  const V16 two_rest = vcast(ishl<23>(iadd(isub(whole, first), iset1(127))));
  const V16 y = vmul(vmul(p, two_first), two_rest);
  return vselect_lt(x, low, vset1(0.0f), y);
}

// 2^x for x ≤ 1, relative error below 2e-7; what lies below −125 counts as −125, which no sum near 1 can notice.
// A polynomial of degree 5 on [−1/2, 1/2], least largest relative error with the first coefficient held at 1.
inline V16 vexp2(V16 x) {
  const V16 magic = vset1(12582912.0f);  // 1.5 · 2^23: adding it rounds to the nearest whole number
  const V16 clamped = vmax(vset1(-125.0f), x);  // in this order NaN stays NaN
  const V16 shifted = vadd(clamped, magic);
  const V16 f = vsub(clamped, vsub(shifted, magic));
  V16 p = vset1(0.0013264727f);
  p = vfma(p, f, vset1(0.009671513f));
  p = vfma(p, f, vset1(0.055507336f));
  p = vfma(p, f, vset1(0.24022242f));
  p = vfma(p, f, vset1(0.693147f));
  p = vfma(p, f, vset1(1.0f));
  // The whole number stands in the low bits of `shifted`: it goes straight into the exponent.
  return vcast(iadd(icast(p), ishl<23>(icast(shifted))));
}

inline float exp2_1(float x) {
  float f[16];
  vstore(f, vexp2(vset1(x)));
  return f[0];
}

// x · sigmoid(x) (Ramachandran et al. 2017).
inline V16 vsilu(V16 x) {
  return vdiv(x, vadd(vset1(1.0f), vexp(vsub(vset1(0.0f), x))));
}

// 0.5 · x · (1 + tanh(√(2/π) · (x + 0.044715 x³))) (Hendrycks and Gimpel 2016), with 1 + tanh(y) = 2 / (1 + e^(−2y)).
inline V16 vgelu_tanh(V16 x) {
  const V16 cubic = vfma(vmul(vmul(x, x), x), vset1(0.044715f), x);
  const V16 y2 = vmul(cubic, vset1(-1.5957691216057308f));
  return vdiv(x, vadd(vset1(1.0f), vexp(y2)));
}

// x · Φ(x) with erf by formula 7.1.26 of Abramowitz and Stegun (1964), absolute error below 1.5e-7.
inline V16 vgelu(V16 x) {
  const V16 zero = vset1(0.0f), one = vset1(1.0f);
  const V16 y = vmul(x, vset1(0.70710678118654752f));
  const V16 size = vmax(y, vsub(zero, y));
  const V16 t = vdiv(one, vfma(size, vset1(0.3275911f), one));
  V16 p = vset1(1.061405429f);
  p = vfma(p, t, vset1(-1.453152027f));
  p = vfma(p, t, vset1(1.421413741f));
  p = vfma(p, t, vset1(-0.284496736f));
  p = vfma(p, t, vset1(0.254829592f));
  // erfc(|y|): for negative x it is 1 + erf itself, without the loss of a difference.
  const V16 tail = vmul(vmul(p, t), vexp(vsub(zero, vmul(y, y))));
  return vmul(vmul(x, vset1(0.5f)), vselect_lt(x, zero, tail, vsub(vset1(2.0f), tail)));
}

// gate · sigmoid(1.702 · gate) · (up + 1), gate at most 7, up from −7 to 7 (OpenAI 2025, gpt-oss).
inline V16 vswiglu_clamped(V16 gate, V16 up) {
  const V16 g = vmin(vset1(7.0f), gate);
  const V16 u = vmax(vset1(-7.0f), vmin(vset1(7.0f), up));
  const V16 opened = vdiv(g, vadd(vset1(1.0f), vexp(vmul(g, vset1(-1.702f)))));
  return vmul(opened, vadd(u, vset1(1.0f)));
}

}  // namespace
