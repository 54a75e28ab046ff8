// Products of activation rows with one panel of 16 weight rows, so many at once as the instruction set has room for.
//
// For each group of columns, in ascending order: the integer dot product is exact, then
//   acc = fma(float(dot), scale_w · scale_a, acc), and with minima acc = fma(min_w, scale_a · sum_a, acc).
// One row or many, the order and the operations are the same, so the bits are too (law 1). BYTES is the size of an
// activation's integer: 2 for exact products, 1 for fast ones.

namespace {

using pellucid::Code;
using pellucid::kFormats;
using pellucid::QuantizedRow;

constexpr size_t kPrefetchAhead = 8192;

// How far ahead weights are asked for: kPrefetchAhead, or a whole panel where it is larger and no more than kFarthestAhead,
// since its scales come after all its codes but are needed with the first.
inline size_t prefetch_distance(size_t panel_bytes) {
  return panel_bytes > kPrefetchAhead && panel_bytes <= kFarthestAhead ? panel_bytes : kPrefetchAhead;
}

inline void prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }
// Into the second-level cache only: more of these can be under way at once.
inline void prefetch_far(const void* p) { __builtin_prefetch(p, 0, 2); }

template <bool WIDE>
inline V16 load_scales(const uint8_t* p) {
  if constexpr (WIDE) return vload(reinterpret_cast<const float*>(p));
  return vload_half(reinterpret_cast<const uint16_t*>(p));
}

// Exact integer sum minus the centre's share, as float, into the accumulator. CENTER 0: there is nothing to take off.
template <int CENTER>
inline V16 accumulate(I16 s, int32_t sum, float fsum, V16 scale, float a_scale, V16 minimum, V16 acc) {
  if constexpr (CENTER > 0) s = isub(s, ishl<(CENTER > 0 ? CENTER : 0)>(iset1(sum)));
  acc = vfma(vfromint(s), vmul(scale, vset1(a_scale)), acc);
  if constexpr (CENTER < 0) acc = vfma(minimum, vset1(fsum), acc);
  return acc;
}

template <int BYTES, Code CODE, int GROUP, int CENTER, bool WIDE, int M>
inline void int_panel_rows(const uint8_t* panel, int64_t columns, const uint8_t* table, const uint8_t* rows,
                           size_t stride, float* out) {
  constexpr size_t unit_bytes = CODE == Code::Bits8 ? 512 : CODE == Code::Bits6 ? 384 : CODE == Code::Bits5 ? 320 : 256;
  constexpr size_t scale_step = 16 * (WIDE ? 4 : 2);
  constexpr int kParts = 32 / GROUP;
  // Codes, scales and minima of one unit: what one step takes from the panel on average.
  constexpr size_t stream_bytes = unit_bytes + kParts * scale_step * (CENTER < 0 ? 2 : 1);
  constexpr int kTogether = M < kRowsTogether ? M : kRowsTogether;
  using UnitOfRows = Unit<BYTES, CODE, (M > kTogether)>;
  static_assert(!UnitOfRows::kCentred || CENTER == 7);
  constexpr int kCenterLeft = UnitOfRows::kCentred ? 0 : CENTER;
  const size_t units = static_cast<size_t>(columns) / 32;
  const uint8_t* scales = panel + units * unit_bytes;
  const uint8_t* minima = scales + units * kParts * scale_step;
  const size_t ahead = prefetch_distance(units * stream_bytes);
  V16 acc[M];
  PELLUCID_UNROLL
  for (int m = 0; m < M; ++m) acc[m] = vset1(0.0f);
  for (size_t u = 0; u < units; ++u) {
    // Ask for what comes later (the next panels follow): weights are read once and wait in no cache.
    for (size_t line = 0; line < stream_bytes; line += 64) prefetch(panel + u * stream_bytes + line + ahead);
    const UnitOfRows unit(panel + u * unit_bytes, table);
    V16 scale[kParts], minimum[kParts];
    for (int p = 0; p < kParts; ++p) {
      scale[p] = load_scales<WIDE>(scales + (kParts * u + p) * scale_step);
      minimum[p] = CENTER < 0 ? load_scales<WIDE>(minima + (kParts * u + p) * scale_step) : scale[p];
    }
    const auto rows_from = [&](int m0, const uint8_t* from) {
      const auto row = [&](int i) { return QuantizedRow<BYTES>(from + static_cast<size_t>(i) * stride, columns); };
      const auto part = [&](auto of) {
        constexpr int P = decltype(of)::value, J0 = P * GROUP / 4;
        const size_t g = kParts * u + P;
        I16 sums[kTogether];
        unit.template dots<J0, J0 + GROUP / 4>(row(0).codes() + 32 * BYTES * u, stride, sums);
        PELLUCID_UNROLL
        for (int i = 0; i < kTogether; ++i) {
          const QuantizedRow<BYTES> r = row(i);
          acc[m0 + i] = accumulate<kCenterLeft>(sums[i], kParts == 1 ? r.sum32()[g] : r.sum16()[g],
                                           kParts == 1 ? r.fsum32()[g] : r.fsum16()[g], scale[P], r.scale()[u], minimum[P],
                                           acc[m0 + i]);
        }
      };
      part(std::integral_constant<int, 0>{});
      if constexpr (kParts == 2) part(std::integral_constant<int, 1>{});
    };
    if constexpr (kTogether == 1) {
      PELLUCID_UNROLL
      for (int m = 0; m < M; ++m) rows_from(m, rows + static_cast<size_t>(m) * stride);
    } else {
      const uint8_t* from = rows;
      for (int m = 0; m < M; m += kTogether, from += kTogether * stride) rows_from(m, from);
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

// The sums go on from what is in `out`, where a strip is not the first of its panel.
template <Code CODE, int M>
inline void float_panel_rows(const uint8_t* panel, int64_t columns, const uint8_t* rows, size_t stride, float* out,
                             bool go_on = false) {
  V16 acc[M];
  for (int m = 0; m < M; ++m) acc[m] = go_on ? vload(out + 16 * m) : vset1(0.0f);
  for (int64_t k = 0; k < columns; ++k) {
    const V16 w = load_column<CODE>(panel, k);
    for (int m = 0; m < M; ++m)
      acc[m] = vfma(w, vset1(reinterpret_cast<const float*>(rows + static_cast<size_t>(m) * stride)[k]), acc[m]);
  }
  for (int m = 0; m < M; ++m) vstore(out + 16 * m, acc[m]);
}

// Calls f with the row count as a constant: blocks of 16, 8, 4, 2 and 1, none above MOST, cover any count. Where four rows
// fill the registers, eight at once would gain nothing.
template <int MOST, class F>
inline void in_row_blocks(int count, const uint8_t* rows, size_t stride, float* out, F f) {
  const auto advance = [&](int n) {
    rows += static_cast<size_t>(n) * stride;
    out += 16 * n;
    count -= n;
  };
  if constexpr (MOST >= 16)
    while (count >= 16) f(std::integral_constant<int, 16>{}, rows, out), advance(16);
  if constexpr (MOST >= 8 && kRowsTogether < 4)
    while (count >= 8) f(std::integral_constant<int, 8>{}, rows, out), advance(8);
  while (count >= 4) f(std::integral_constant<int, 4>{}, rows, out), advance(4);
  if (count >= 2) f(std::integral_constant<int, 2>{}, rows, out), advance(2);
  if (count >= 1) f(std::integral_constant<int, 1>{}, rows, out);
}

template <int BYTES, int F, Code CODE, int GROUP, int CENTER, bool WIDE>
void int_panel(const uint8_t* panel, int64_t columns, const uint8_t* rows, size_t stride, int count, float* out, uint8_t*) {
  const uint8_t* table = kFormats[F].table;
  in_row_blocks<rows_of_codes(BYTES, CODE)>(count, rows, stride, out, [&](auto m, const uint8_t* r, float* o) {
    int_panel_rows<BYTES, CODE, GROUP, CENTER, WIDE, decltype(m)::value>(panel, columns, table, r, stride, o);
  });
}

template <Code CODE>
void float_panel(const uint8_t* panel, int64_t columns, const uint8_t* rows, size_t stride, int count, float* out, uint8_t*) {
  constexpr int64_t kStrip = 64;  // columns whose floats, with those of 64 rows, fit into the nearest cache
  if (CODE == Code::Float32 || kFloatRows >= 16 || count <= kFloatRows) {
    in_row_blocks<kFloatRows>(count, rows, stride, out, [&](auto m, const uint8_t* r, float* o) {
      float_panel_rows<CODE, decltype(m)::value>(panel, columns, r, stride, o);
    });
    return;
  }
  // Many passes over the panel: its columns are made floats once.
  alignas(64) float strip[16 * kStrip];
  for (int64_t begin = 0; begin < columns; begin += kStrip) {
    const int64_t n = std::min(kStrip, columns - begin);
    for (int64_t k = 0; k < n; ++k) vstore(strip + 16 * k, load_column<CODE>(panel, begin + k));
    const auto pass = [&](auto m, const uint8_t* r, float* o) {
      float_panel_rows<Code::Float32, decltype(m)::value>(reinterpret_cast<const uint8_t*>(strip), n, r, stride, o, begin > 0);
    };
    in_row_blocks<kFloatRows>(count, rows + begin * static_cast<int64_t>(sizeof(float)), stride, out, pass);
  }
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
