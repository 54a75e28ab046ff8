// Products of up to kMaxRows activation rows with one panel of 16 weight rows.
//
// For each group of columns, in ascending order: the integer dot product is exact, then
//   acc = fma(float(dot), scale_w · scale_a, acc), and with minima acc = fma(min_w, scale_a · sum_a, acc).
// One row or many, the order and the operations are the same, so the bits are too (law 1). BYTES is the size of an
// activation's integer: 2 for exact products, 1 for fast ones.

namespace {

using pellucid::Code;
using pellucid::kFormats;
using pellucid::QuantizedRow;

// Without it, the compiler keeps the accumulators of many rows in memory.
#define PELLUCID_UNROLL _Pragma("GCC unroll 16")

constexpr size_t kPrefetchAhead = 8192;

inline void prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }
// Into the second-level cache only: more of these can be under way at once.
inline void prefetch_far(const void* p) { __builtin_prefetch(p, 0, 2); }

template <bool WIDE>
inline V16 load_scales(const uint8_t* p) {
  if constexpr (WIDE) return vload(reinterpret_cast<const float*>(p));
  return vload_half(reinterpret_cast<const uint16_t*>(p));
}

template <Code CODE>
inline Codes unpack(const uint8_t* unit, const uint8_t* table) {
  Codes c;
  if constexpr (CODE == Code::Bits8) {
    load_bytes(c, unit);
  } else {
    unpack_nibbles(c, unit);
    if constexpr (CODE == Code::Bits5 || CODE == Code::Bits6) add_plane(c, unit + 256, 16);
    if constexpr (CODE == Code::Bits6) add_plane(c, unit + 320, 32);
    if constexpr (CODE == Code::Table4) look_up(c, table);
  }
  (void)table;
  return c;
}

// The exact integer sum over columns [4·J0, 4·J1) of the unit.
template <int BYTES, Code CODE, int J0, int J1>
inline I16 dot_of(const Codes& c, const uint8_t* a) {
  constexpr bool kLarge = CODE == Code::Bits8 || CODE == Code::Table4;  // codes above 127
  if constexpr (BYTES == 1) return dot_bytes<kLarge, J0, J1>(c, a);
  return dot<J0, J1>(c, a);
}

// Exact integer sum minus the centre's share, as float, into the accumulator.
template <int CENTER>
inline V16 accumulate(I16 s, int32_t sum, float fsum, V16 scale, float a_scale, V16 minimum, V16 acc) {
  if constexpr (CENTER >= 0) s = isub(s, ishl<(CENTER >= 0 ? CENTER : 0)>(iset1(sum)));
  acc = vfma(vfromint(s), vmul(scale, vset1(a_scale)), acc);
  if constexpr (CENTER < 0) acc = vfma(minimum, vset1(fsum), acc);
  return acc;
}

template <int BYTES, Code CODE, int GROUP, int CENTER, bool WIDE, int M>
inline void int_panel_rows(const uint8_t* panel, int64_t columns, const uint8_t* table, const uint8_t* rows,
                           size_t stride, float* out) {
  constexpr size_t unit_bytes = CODE == Code::Bits8 ? 512 : CODE == Code::Bits6 ? 384 : CODE == Code::Bits5 ? 320 : 256;
  constexpr size_t scale_step = 16 * (WIDE ? 4 : 2);
  // Codes, scales and minima of one unit: what one step takes from the panel on average.
  constexpr size_t stream_bytes = unit_bytes + (32 / GROUP) * scale_step * (CENTER < 0 ? 2 : 1);
  const size_t units = static_cast<size_t>(columns) / 32;
  const uint8_t* scales = panel + units * unit_bytes;
  const uint8_t* minima = scales + units * (32 / GROUP) * scale_step;
  V16 acc[M];
  PELLUCID_UNROLL
  for (int m = 0; m < M; ++m) acc[m] = vset1(0.0f);
  for (size_t u = 0; u < units; ++u) {
    // Ask for what comes a few kilobytes later (the next panels follow): weights are read once and wait in no cache.
    for (size_t line = 0; line < stream_bytes; line += 64) prefetch(panel + u * stream_bytes + line + kPrefetchAhead);
    const Codes c = unpack<CODE>(panel + u * unit_bytes, table);
    const auto row = [&](int m) { return QuantizedRow<BYTES>(rows + static_cast<size_t>(m) * stride, columns); };
    if constexpr (GROUP == 32) {
      const V16 s = load_scales<WIDE>(scales + u * scale_step);
      const V16 mn = CENTER < 0 ? load_scales<WIDE>(minima + u * scale_step) : s;
      PELLUCID_UNROLL
      for (int m = 0; m < M; ++m) {
        const QuantizedRow<BYTES> r = row(m);
        acc[m] = accumulate<CENTER>(dot_of<BYTES, CODE, 0, 8>(c, r.codes() + 32 * BYTES * u), r.sum32()[u],
                                    r.fsum32()[u], s, r.scale()[u], mn, acc[m]);
      }
    } else {
      const uint8_t* sp = scales + 2 * u * scale_step;
      const uint8_t* mp = minima + 2 * u * scale_step;
      const V16 s0 = load_scales<WIDE>(sp), s1 = load_scales<WIDE>(sp + scale_step);
      const V16 m0 = CENTER < 0 ? load_scales<WIDE>(mp) : s0, m1 = CENTER < 0 ? load_scales<WIDE>(mp + scale_step) : s1;
      PELLUCID_UNROLL
      for (int m = 0; m < M; ++m) {
        const QuantizedRow<BYTES> r = row(m);
        const uint8_t* a = r.codes() + 32 * BYTES * u;
        const float as = r.scale()[u];
        acc[m] = accumulate<CENTER>(dot_of<BYTES, CODE, 0, 4>(c, a), r.sum16()[2 * u], r.fsum16()[2 * u], s0, as, m0, acc[m]);
        acc[m] = accumulate<CENTER>(dot_of<BYTES, CODE, 4, 8>(c, a), r.sum16()[2 * u + 1], r.fsum16()[2 * u + 1], s1, as,
                                    m1, acc[m]);
      }
    }
  }
  PELLUCID_UNROLL
  for (int m = 0; m < M; ++m) vstore(out + 16 * m, acc[m]);
}

template <Code CODE>
inline V16 load_column(const uint8_t* panel, int64_t k) {
  if constexpr (CODE == Code::Float32) return vload(reinterpret_cast<const float*>(panel) + 16 * k);
  if constexpr (CODE == Code::Float16) return vload_half(reinterpret_cast<const uint16_t*>(panel) + 16 * k);
  return vload_bf16(reinterpret_cast<const uint16_t*>(panel) + 16 * k);
}

template <Code CODE, int M>
inline void float_panel_rows(const uint8_t* panel, int64_t columns, const uint8_t* rows, size_t stride, float* out) {
  V16 acc[M];
  for (int m = 0; m < M; ++m) acc[m] = vset1(0.0f);
  for (int64_t k = 0; k < columns; ++k) {
    const V16 w = load_column<CODE>(panel, k);
    for (int m = 0; m < M; ++m)
      acc[m] = vfma(w, vset1(reinterpret_cast<const float*>(rows + static_cast<size_t>(m) * stride)[k]), acc[m]);
  }
  for (int m = 0; m < M; ++m) vstore(out + 16 * m, acc[m]);
}

// Calls f with the row count as a constant: blocks of 8, 4, 2 and 1 cover any count.
template <class F>
inline void in_row_blocks(int count, const uint8_t* rows, size_t stride, float* out, F f) {
  const auto advance = [&](int n) {
    rows += static_cast<size_t>(n) * stride;
    out += 16 * n;
    count -= n;
  };
  if constexpr (kMaxRows >= 16)
    while (count >= 16) f(std::integral_constant<int, 16>{}, rows, out), advance(16);
  if constexpr (kMaxRows >= 8)
    while (count >= 8) f(std::integral_constant<int, 8>{}, rows, out), advance(8);
  while (count >= 4) f(std::integral_constant<int, 4>{}, rows, out), advance(4);
  if (count >= 2) f(std::integral_constant<int, 2>{}, rows, out), advance(2);
  if (count >= 1) f(std::integral_constant<int, 1>{}, rows, out);
}

template <int BYTES, int F, Code CODE, int GROUP, int CENTER, bool WIDE>
void int_panel(const uint8_t* panel, int64_t columns, const uint8_t* rows, size_t stride, int count, float* out, uint8_t*) {
  const uint8_t* table = kFormats[F].table;
  in_row_blocks(count, rows, stride, out, [&](auto m, const uint8_t* r, float* o) {
    int_panel_rows<BYTES, CODE, GROUP, CENTER, WIDE, decltype(m)::value>(panel, columns, table, r, stride, o);
  });
}

template <Code CODE>
void float_panel(const uint8_t* panel, int64_t columns, const uint8_t* rows, size_t stride, int count, float* out, uint8_t*) {
  in_row_blocks(count, rows, stride, out, [&](auto m, const uint8_t* r, float* o) {
    float_panel_rows<CODE, decltype(m)::value>(panel, columns, r, stride, o);
  });
}

}  // namespace

// One entry for each row of kFormats, in its order: FLOAT<code> or
//   INT<index in kFormats, code, columns per scale, log2 of the centre or −1 for minima, float32 scales?>
#define PELLUCID_PANELS(FLOAT, INT)                                                                                \
  {                                                                                                                \
    FLOAT(Code::Float32), FLOAT(Code::Float16), FLOAT(Code::BFloat16), INT(3, Code::Bits4, 32, 3, false),          \
        INT(4, Code::Bits4, 32, -1, false), INT(5, Code::Bits5, 32, 4, false), INT(6, Code::Bits5, 32, -1, false), \
        INT(7, Code::Bits8, 32, 7, false), INT(8, Code::Bits4, 16, -1, true), INT(9, Code::Bits4, 16, 2, true),    \
        INT(10, Code::Bits4, 32, -1, true), INT(11, Code::Bits5, 32, -1, true), INT(12, Code::Bits6, 16, 5, true), \
        INT(13, Code::Table4, 32, 7, false), INT(14, Code::Table4, 32, 7, true), INT(15, Code::Table4, 32, 7, true) \
  }
#define PELLUCID_FLOAT_PANEL(CODE) float_panel<CODE>
#define PELLUCID_EXACT_PANEL(...) int_panel<2, __VA_ARGS__>
#define PELLUCID_FAST_PANEL(...) int_panel<1, __VA_ARGS__>

#define PELLUCID_EXACT                                                                                               \
  {                                                                                                                  \
    QuantizedRow<2>::bytes, quantize_row<2>, false, PELLUCID_PANELS(PELLUCID_FLOAT_PANEL, PELLUCID_EXACT_PANEL), nullptr, \
        nullptr, nullptr                                                                                             \
  }
#define PELLUCID_FAST                                                                                               \
  {                                                                                                                 \
    QuantizedRow<1>::bytes, quantize_row<1>, false, PELLUCID_PANELS(PELLUCID_FLOAT_PANEL, PELLUCID_FAST_PANEL), nullptr, \
        nullptr, nullptr                                                                                            \
  }
