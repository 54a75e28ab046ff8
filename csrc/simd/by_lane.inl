// What these instruction sets have no instructions for, lane by lane over what the including file defines; part of its namespace.
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
