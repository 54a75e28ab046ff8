// Weight codes of 16 rows × 32 columns, and their products with rows of activations, where a unit's codes are unpacked
// once and stay: in registers, or in plain arrays.
#pragma once
#include "compiler.h"

namespace {

using pellucid::Code;

constexpr int kRowsTogether = 1;
constexpr int kFloatRows = kMaxRows;
constexpr int rows_of_codes(int, Code) { return kMaxRows; }
constexpr size_t kFarthestAhead = 0;  // a whole panel ahead was measured with AVX2 alone

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

// A unit for BYTES-byte activations.
template <int BYTES, Code CODE, bool>
struct Unit {
  static constexpr bool kCentred = false;  // its sums are of codes as they are
  Codes codes;
  Unit(const uint8_t* unit, const uint8_t* table) : codes(unpack<CODE>(unit, table)) {}

  // Exact sums over columns [4·J0, 4·J1) for M rows.
  template <int J0, int J1, int M>
  PELLUCID_INLINE void dots(const uint8_t* a, size_t stride, I16 (&s)[M]) const {
    PELLUCID_UNROLL
    for (int m = 0; m < M; ++m) s[m] = dot_of<BYTES, CODE, J0, J1>(codes, a + static_cast<size_t>(m) * stride);
  }
};

}  // namespace
