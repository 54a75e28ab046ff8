// Products of many activation rows with one panel of 16 weight rows, on tiles of 16 rows.
//
// Exact: a = 256 · high + low are two int8 tile products, whose exact sums are scaled and added as in panel.inl, with the
// same functions in the same order; so one row's bits do not depend on which kernel computed it (law 1). The epilogue
// stays in sixteen registers, and the products of the next group are issued before it: four accumulator tiles in flight.
// Fast: weights and activations in bfloat16, summed in float32 by the tiles themselves.
// Either way the panel is unpacked once for all the rows of a call.

namespace {

using pellucid::Code;
using pellucid::kTileRows;
using pellucid::QuantizedRow;

constexpr size_t kTileRowBytes = 64;
constexpr int kTile = 16;  // rows of an accumulator tile

// ---- exact ---------------------------------------------------------------------------------------------------------

// Tiles 0–3 are sums [16][16] int32; 4 and 5 the high and low bytes of 16 rows × 32 columns; 6 and 7 weights.
void enter_exact() {
  TileConfig config;
  for (int t = 0; t < 4; ++t) config.set(t, kTile, 64);
  for (int t = 4; t < 6; ++t) config.set(t, kTile, 32);
  for (int t = 6; t < 8; ++t) config.set(t, 8, 64);
  tiles_configure(config);
}
void leave_tiles() { tiles_release(); }

size_t exact_scratch(int64_t k) { return static_cast<size_t>(k) * 32; }

// Sums of one unit of 32 columns: [first, second half for groups of 16 columns][high, low][row][lane].
struct alignas(64) UnitSums {
  int32_t sum[2][2][kTile][16];
};

inline void store_weights(uint8_t* to, const Codes& c, int begin, int end) {
  for (int j = 0; j < 8; ++j)
    _mm512_store_si512(to + 64 * j, j >= begin && j < end ? c.w[j] : _mm512_setzero_si512());
}

// One unit in 512 bytes, or, where a scale belongs to 16 columns, two tiles of which each has one half and zeros.
template <Code CODE, int GROUP>
inline void unpack_panel(const uint8_t* panel, size_t units, const uint8_t* table, uint8_t* to) {
  constexpr size_t unit_bytes = CODE == Code::Bits8 ? 512 : CODE == Code::Bits6 ? 384 : CODE == Code::Bits5 ? 320 : 256;
  for (size_t u = 0; u < units; ++u) {
    for (size_t line = 0; line < unit_bytes; line += 64) prefetch(panel + u * unit_bytes + line + kPrefetchAhead);
    const Codes c = unpack<CODE>(panel + u * unit_bytes, table);
    if constexpr (GROUP == 32) {
      store_weights(to + 512 * u, c, 0, 8);
    } else {
      store_weights(to + 1024 * u, c, 0, 4);
      store_weights(to + 1024 * u + 512, c, 4, 8);
    }
  }
}

// EVEN chooses the tiles, so that two units in a row do not wait for each other.
template <int GROUP, bool EVEN>
inline void issue_unit(const uint8_t* weights, const uint8_t* rows, size_t stride, size_t u, UnitSums& sums) {
  const uint8_t* high = rows + 64 * u;
  tile_load<4>(high, stride);
  tile_load<5>(high + 32, stride);
  if constexpr (GROUP == 32) {
    constexpr int c = EVEN ? 0 : 2, w = EVEN ? 6 : 7;
    tile_load<w>(weights + 512 * u, kTileRowBytes);
    tile_zero<c>();
    tile_zero<c + 1>();
    tile_dot_bytes<c, 4, w>();
    tile_dot_bytes<c + 1, 5, w>();
    tile_store<c>(sums.sum[0][0], kTileRowBytes);
    tile_store<c + 1>(sums.sum[0][1], kTileRowBytes);
  } else {
    tile_load<6>(weights + 1024 * u, kTileRowBytes);
    tile_load<7>(weights + 1024 * u + 512, kTileRowBytes);
    tile_zero<0>();
    tile_zero<1>();
    tile_zero<2>();
    tile_zero<3>();
    tile_dot_bytes<0, 4, 6>();
    tile_dot_bytes<1, 5, 6>();
    tile_dot_bytes<2, 4, 7>();
    tile_dot_bytes<3, 5, 7>();
    tile_store<0>(sums.sum[0][0], kTileRowBytes);
    tile_store<1>(sums.sum[0][1], kTileRowBytes);
    tile_store<2>(sums.sum[1][0], kTileRowBytes);
    tile_store<3>(sums.sum[1][1], kTileRowBytes);
  }
}

inline I16 joined(const UnitSums& sums, int half, int m) {
  const I16 high = {_mm512_load_si512(sums.sum[half][0][m])}, low = {_mm512_load_si512(sums.sum[half][1][m])};
  return iadd(ishl<8>(high), low);
}

// Sixteen rows; `count` of them are wanted, the others lie in memory that may be read.
template <int GROUP, int CENTER, bool WIDE>
inline void exact_tile(const uint8_t* weights, const uint8_t* scales, const uint8_t* minima, int64_t columns,
                       const uint8_t* rows, size_t stride, int count, float* out) {
  constexpr size_t scale_step = 16 * (WIDE ? 4 : 2);
  const size_t units = static_cast<size_t>(columns) / 32;
  UnitSums even, odd;
  V16 acc[kTile];
  PELLUCID_UNROLL
  for (int m = 0; m < kTile; ++m) acc[m] = vset1(0.0f);
  const auto finish = [&](size_t u, const UnitSums& sums) {
    const uint8_t* sp = scales + u * (32 / GROUP) * scale_step;
    const uint8_t* mp = minima + u * (32 / GROUP) * scale_step;
    const V16 s0 = load_scales<WIDE>(sp), m0 = CENTER < 0 ? load_scales<WIDE>(mp) : s0;
    const V16 s1 = GROUP == 16 ? load_scales<WIDE>(sp + scale_step) : s0;
    const V16 m1 = GROUP == 16 && CENTER < 0 ? load_scales<WIDE>(mp + scale_step) : m0;
    PELLUCID_UNROLL
    for (int m = 0; m < kTile; ++m) {
      const QuantizedRow<2> r(rows + static_cast<size_t>(m) * stride, columns);
      const float as = r.scale()[u];
      if constexpr (GROUP == 32) {
        acc[m] = accumulate<CENTER>(joined(sums, 0, m), r.sum32()[u], r.fsum32()[u], s0, as, m0, acc[m]);
      } else {
        acc[m] = accumulate<CENTER>(joined(sums, 0, m), r.sum16()[2 * u], r.fsum16()[2 * u], s0, as, m0, acc[m]);
        acc[m] = accumulate<CENTER>(joined(sums, 1, m), r.sum16()[2 * u + 1], r.fsum16()[2 * u + 1], s1, as, m1, acc[m]);
      }
    }
  };
  issue_unit<GROUP, true>(weights, rows, stride, 0, even);
  for (size_t u = 0; u < units; u += 2) {
    if (u + 1 < units) issue_unit<GROUP, false>(weights, rows, stride, u + 1, odd);
    finish(u, even);
    if (u + 1 == units) break;
    if (u + 2 < units) issue_unit<GROUP, true>(weights, rows, stride, u + 2, even);
    finish(u + 1, odd);
  }
  PELLUCID_UNROLL
  for (int m = 0; m < kTile; ++m)
    if (m < count) vstore(out + 16 * m, acc[m]);
}

template <int F, Code CODE, int GROUP, int CENTER, bool WIDE>
void exact_panel(const uint8_t* panel, int64_t columns, const uint8_t* rows, size_t stride, int count, float* out,
                 uint8_t* scratch) {
  if (count >= kTileRows) {
    const size_t units = static_cast<size_t>(columns) / 32;
    const uint8_t* scales = panel + kFormats[F].codes_bytes(columns);
    const uint8_t* minima = scales + kFormats[F].scales_bytes(columns);
    unpack_panel<CODE, GROUP>(panel, units, kFormats[F].table, scratch);
    while (count >= kTileRows) {
      const int taken = count < kTile ? count : kTile;
      exact_tile<GROUP, CENTER, WIDE>(scratch, scales, minima, columns, rows, stride, taken, out);
      rows += static_cast<size_t>(taken) * stride;
      out += 16 * taken;
      count -= taken;
    }
  }
  if (count > 0) pellucid::kAvx512VnniKernels.exact.panel[F](panel, columns, rows, stride, count, out, scratch);
}

// ---- fast ----------------------------------------------------------------------------------------------------------

// Tiles 0–3 are sums [16][16] float; 4 and 5 weights of 32 columns as 16 pairs; 6 and 7 activations of 16 rows.
void enter_fast() {
  TileConfig config;
  for (int t = 0; t < 8; ++t) config.set(t, kTile, 64);
  tiles_configure(config);
}

// Columns are padded with zeros to whole tiles.
inline size_t fast_units(int64_t k) { return (static_cast<size_t>(k) + 31) / 32; }
size_t fast_scratch(int64_t k) { return fast_units(k) * 1024; }
size_t fast_row_bytes(int64_t k) { return fast_units(k) * 64; }

// Nearest bfloat16, ties to even, in the upper half of each lane; NaN stays NaN, and what is too large becomes infinite.
inline __m512i bf16_upper(V16 x) {
  const __m512i bits = _mm512_castps_si512(x.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __mmask16 nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
  return _mm512_mask_blend_epi32(nan, rounded, _mm512_or_si512(bits, _mm512_set1_epi32(0x00400000)));
}

void fast_row(const float* x, int64_t k, uint8_t* out) {
  int64_t i = 0;
  for (; i < k; i += 16) {
    const __mmask16 there = static_cast<__mmask16>(i + 16 <= k ? 0xffff : (1 << (k - i)) - 1);
    const V16 v = {_mm512_maskz_loadu_ps(there, x + i)};
    const __m256i halves = _mm512_cvtepi32_epi16(_mm512_srli_epi32(bf16_upper(v), 16));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 2 * i), halves);
  }
  const size_t done = static_cast<size_t>(i) * 2, all = fast_row_bytes(k);
  if (done < all) std::memset(out + done, 0, all - done);
}

// Two columns side by side: lane n holds weight row n of the first column, then of the second.
inline void store_pair(uint8_t* to, V16 first, V16 second) {
  const __m512i low = _mm512_srli_epi32(bf16_upper(first), 16);
  const __m512i high = _mm512_and_si512(bf16_upper(second), _mm512_set1_epi32(static_cast<int32_t>(0xffff0000)));
  _mm512_store_si512(to, _mm512_or_si512(low, high));
}

template <Code CODE>
void widen_floats(const uint8_t* panel, int64_t columns, uint8_t* to) {
  const auto column = [&](int64_t k) { return k < columns ? load_column<CODE>(panel, k) : vset1(0.0f); };
  for (size_t pair = 0; pair < fast_units(columns) * 16; ++pair) {
    const int64_t k = static_cast<int64_t>(2 * pair);
    store_pair(to + 64 * pair, column(k), column(k + 1));
  }
}

// The weights of one panel as numbers: s · (q − centre), or s · q + m.
template <int F, Code CODE, int GROUP, int CENTER, bool WIDE>
void widen_codes(const uint8_t* panel, int64_t columns, uint8_t* to) {
  constexpr size_t scale_step = 16 * (WIDE ? 4 : 2);
  const uint8_t* scales = panel + kFormats[F].codes_bytes(columns);
  const uint8_t* minima = scales + kFormats[F].scales_bytes(columns);
  for (size_t u = 0; u < static_cast<size_t>(columns) / 32; ++u) {
    for (size_t line = 0; line < kFormats[F].unit_bytes(); line += 64)
      prefetch(panel + u * kFormats[F].unit_bytes() + line + kPrefetchAhead);
    const Codes c = unpack<CODE>(panel + u * kFormats[F].unit_bytes(), kFormats[F].table);
    for (int j = 0; j < 8; ++j) {
      const size_t group = GROUP == 32 ? u : 2 * u + static_cast<size_t>(j / 4);
      const V16 s = load_scales<WIDE>(scales + group * scale_step);
      const V16 m = CENTER < 0 ? load_scales<WIDE>(minima + group * scale_step) : s;
      const auto weight = [&](unsigned shift) {
        I16 q = {_mm512_and_si512(_mm512_srli_epi32(c.w[j], shift), _mm512_set1_epi32(255))};
        if constexpr (CENTER < 0) return vfma(s, vfromint(q), m);
        q = isub(q, iset1(1 << (CENTER < 0 ? 0 : CENTER)));
        return vmul(s, vfromint(q));
      };
      uint8_t* at = to + 1024 * u + static_cast<size_t>(128 * j);
      store_pair(at, weight(0), weight(8));
      store_pair(at + 64, weight(16), weight(24));
    }
  }
}

// TILES · 16 rows against one panel.
template <int TILES>
inline void fast_tiles(const uint8_t* weights, size_t units, const uint8_t* rows, size_t stride, int count, float* out) {
  const size_t tile_stride = kTile * stride;
  tile_zero<0>();
  if constexpr (TILES > 1) tile_zero<1>();
  if constexpr (TILES > 2) tile_zero<2>();
  if constexpr (TILES > 3) tile_zero<3>();
  for (size_t u = 0; u < units; ++u) {
    const uint8_t* a = rows + 64 * u;
    tile_load<4>(weights + 1024 * u, kTileRowBytes);
    tile_load<6>(a, stride);
    tile_dot_bf16<0, 6, 4>();
    if constexpr (TILES > 1) tile_load<7>(a + tile_stride, stride), tile_dot_bf16<1, 7, 4>();
    if constexpr (TILES > 2) tile_load<6>(a + 2 * tile_stride, stride), tile_dot_bf16<2, 6, 4>();
    if constexpr (TILES > 3) tile_load<7>(a + 3 * tile_stride, stride), tile_dot_bf16<3, 7, 4>();
  }
  alignas(64) float sums[TILES * kTile * 16];
  tile_store<0>(sums, kTileRowBytes);
  if constexpr (TILES > 1) tile_store<1>(sums + 256, kTileRowBytes);
  if constexpr (TILES > 2) tile_store<2>(sums + 512, kTileRowBytes);
  if constexpr (TILES > 3) tile_store<3>(sums + 768, kTileRowBytes);
  std::memcpy(out, sums, static_cast<size_t>(count) * 64);
}

inline void fast_rows(const uint8_t* weights, size_t units, const uint8_t* rows, size_t stride, int count, float* out) {
  while (count > 0) {
    const int taken = count < 4 * kTile ? count : 4 * kTile;
    switch ((taken + kTile - 1) / kTile) {
      case 1: fast_tiles<1>(weights, units, rows, stride, taken, out); break;
      case 2: fast_tiles<2>(weights, units, rows, stride, taken, out); break;
      case 3: fast_tiles<3>(weights, units, rows, stride, taken, out); break;
      default: fast_tiles<4>(weights, units, rows, stride, taken, out);
    }
    rows += static_cast<size_t>(taken) * stride;
    out += 16 * taken;
    count -= taken;
  }
}

template <Code CODE>
void fast_float_panel(const uint8_t* panel, int64_t columns, const uint8_t* rows, size_t stride, int count, float* out,
                      uint8_t* scratch) {
  widen_floats<CODE>(panel, columns, scratch);
  fast_rows(scratch, fast_units(columns), rows, stride, count, out);
}
template <int F, Code CODE, int GROUP, int CENTER, bool WIDE>
void fast_panel(const uint8_t* panel, int64_t columns, const uint8_t* rows, size_t stride, int count, float* out,
                uint8_t* scratch) {
  widen_codes<F, CODE, GROUP, CENTER, WIDE>(panel, columns, scratch);
  fast_rows(scratch, fast_units(columns), rows, stride, count, out);
}

}  // namespace

#define PELLUCID_NO_PANEL(CODE) nullptr
#define PELLUCID_TILE_EXACT_PANEL(...) exact_panel<__VA_ARGS__>
#define PELLUCID_TILE_FAST_FLOAT_PANEL(CODE) fast_float_panel<CODE>
#define PELLUCID_TILE_FAST_PANEL(...) fast_panel<__VA_ARGS__>

// What is nullptr is as on the instruction set without tiles (isa.cpp).
#define PELLUCID_TILE_EXACT                                                                                         \
  {                                                                                                                 \
    nullptr, nullptr, false, PELLUCID_PANELS(PELLUCID_NO_PANEL, PELLUCID_TILE_EXACT_PANEL), exact_scratch, enter_exact, \
        leave_tiles                                                                                                 \
  }
#define PELLUCID_TILE_FAST                                                                                     \
  {                                                                                                            \
    fast_row_bytes, fast_row, true, PELLUCID_PANELS(PELLUCID_TILE_FAST_FLOAT_PANEL, PELLUCID_TILE_FAST_PANEL), \
        fast_scratch, enter_fast, leave_tiles                                                                  \
  }
