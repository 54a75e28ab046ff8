// Weight codes of 16 rows × 32 columns, and their products with rows of activations, for AVX2.
//
// Sixteen registers have no room for a unit's codes beside the sums: a few columns are unpacked, multiplied with all rows
// of activations, and forgotten. Where there are many rows, unpacked columns wait in memory.
#pragma once
#include "compiler.h"

namespace {

using pellucid::Code;

constexpr int kRowsTogether = 4;  // their sums fit into the registers
constexpr int kFloatRows = 4;
// Sums of more rows wait in memory, which pays only where it saves much unpacking.
constexpr int rows_of_codes(int bytes, Code code) {
  const bool slow_table = code == Code::Table4 && bytes == 1 && !kByteSums;
  return code == Code::Bits5 || code == Code::Bits6 || slow_table ? 16 : kRowsTogether;
}
constexpr size_t kFarthestAhead = 65536;  // what the second-level cache surely holds

// ---- activations of 32 columns: int16 in the order 0 2 1 3 of every four, to pair with even and odd code bytes -------

inline void store_codes(uint8_t* dst, I16 a0, I16 a1) {
  const auto reordered = [](I16 a) { return _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(inarrow(a), 0xd8), 0xd8); };
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst), reordered(a0));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst + 32), reordered(a1));
}

inline __m256i broadcast4(const uint8_t* p) {
  int32_t word;
  std::memcpy(&word, p, 4);
  return _mm256_set1_epi32(word);
}

// ---- activations of 32 columns as 32 bytes ------------------------------------------------------------------------

inline void store_bytes(uint8_t* dst, I16 a0, I16 a1) {
  const __m256i bytes = _mm256_packs_epi16(inarrow(a0), inarrow(a1));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst), _mm256_permute4x64_epi64(bytes, 0xd8));
}

// ---- weight codes --------------------------------------------------------------------------------------------------

inline __m256i load256(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

// Adds VALUE to every code whose bit is set in the plane's 32 bits.
template <int VALUE>
inline __m256i add_plane(__m256i codes, const uint8_t* plane) {
  // Copy each source byte eight times, then keep one bit per byte. The eighth is the sign: what it adds is negated twice.
  const __m256i spread = _mm256_setr_epi64x(0x0000000000000000, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i bits = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201ULL));
  constexpr uint64_t kSeven = 0x0001010101010101ULL * VALUE, kEighth = static_cast<uint64_t>(256 - VALUE) << 56;
  const __m256i value = _mm256_set1_epi64x(static_cast<long long>(kSeven | kEighth));
  const __m256i bit = _mm256_and_si256(_mm256_shuffle_epi8(broadcast4(plane), spread), bits);
  return _mm256_add_epi8(codes, _mm256_sign_epi8(value, bit));
}

// Columns 4j … 4j + 3 of eight rows (`half` 0: rows 0–7) as bytes.
template <Code CODE>
inline __m256i code_bytes(const uint8_t* unit, const uint8_t* table, int j, int half) {
  if constexpr (CODE == Code::Bits8) return load256(unit + 64 * j + 32 * half);
  const __m256i packed = load256(unit + 64 * (j / 2) + 32 * half);
  __m256i c = _mm256_and_si256(j % 2 ? _mm256_srli_epi16(packed, 4) : packed, _mm256_set1_epi8(15));
  if constexpr (CODE == Code::Bits5 || CODE == Code::Bits6) c = add_plane<16>(c, unit + 256 + 8 * j + 4 * half);
  if constexpr (CODE == Code::Bits6) c = add_plane<32>(c, unit + 320 + 8 * j + 4 * half);
  if constexpr (CODE == Code::Table4)
    c = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table))), c);
  return c;
}

// The even (`odd` 0) or odd two of these columns as int16 pairs.
template <Code CODE>
inline __m256i code_pairs(const uint8_t* unit, const uint8_t* table, int j, int odd, int half) {
  if constexpr (CODE == Code::Bits4) {
    const __m256i packed = load256(unit + 64 * (j / 2) + 32 * half), low = _mm256_set1_epi16(15);
    if (j % 2 == 0) return _mm256_and_si256(odd ? _mm256_srli_epi16(packed, 8) : packed, low);
    return odd ? _mm256_srli_epi16(packed, 12) : _mm256_and_si256(_mm256_srli_epi16(packed, 4), low);
  }
  const __m256i c = code_bytes<CODE>(unit, table, j, half);
  return odd ? _mm256_srli_epi16(c, 8) : _mm256_and_si256(c, _mm256_set1_epi16(0x00ff));
}

// READY: the columns are unpacked once, into memory, else with each use. kCentred: its sums are of codes less their centre.
template <int BYTES, Code CODE, bool READY>
struct Unit;

template <Code CODE, bool READY>
struct Unit<2, CODE, READY> {
  static constexpr bool kCentred = false;
  const uint8_t* codes;
  const uint8_t* table;
  __m256i ready[READY ? 32 : 1];

  Unit(const uint8_t* unit, const uint8_t* code_table) : codes(unit), table(code_table) {
    if constexpr (READY) {
      PELLUCID_UNROLL
      for (int j = 0; j < 8; ++j)
        for (int i = 0; i < 4; ++i) ready[4 * j + i] = code_pairs<CODE>(codes, table, j, i / 2, i % 2);
    }
  }

  // Exact sums over columns [4·J0, 4·J1) for M rows.
  template <int J0, int J1, int M>
  PELLUCID_INLINE void dots(const uint8_t* a, size_t stride, I16 (&s)[M]) const {
    if constexpr (CODE == Code::Bits4 && M == 1) {
      s[0] = nibble_dot<J0, J1>(a);
      return;
    }
    PELLUCID_UNROLL
    for (int m = 0; m < M; ++m) s[m] = iset1(0);
    PELLUCID_UNROLL
    for (int i = 2 * J0; i < 2 * J1; ++i) {
      const __m256i w0 = READY ? ready[2 * i] : code_pairs<CODE>(codes, table, i / 2, i % 2, 0);
      const __m256i w1 = READY ? ready[2 * i + 1] : code_pairs<CODE>(codes, table, i / 2, i % 2, 1);
      PELLUCID_UNROLL
      for (int m = 0; m < M; ++m) {
        const __m256i x = broadcast4(a + static_cast<size_t>(m) * stride + 4 * i);
        s[m] = {add_products(s[m].a, w0, x), add_products(s[m].b, w1, x)};
      }
    }
  }

 private:
  // One row. Nibbles are taken where they lie, 16 or 256 times as large; a sum of 16 such products fits into 32 bits.
  template <int J0, int J1>
  PELLUCID_INLINE I16 nibble_dot(const uint8_t* a) const {
    const __m256i nibble = _mm256_set1_epi16(15), nibble16 = _mm256_slli_epi16(nibble, 4), nibble256 = _mm256_slli_epi16(nibble, 8);
    __m256i sum[2], sum16[2], sum256[2];
    for (int half = 0; half < 2; ++half) sum[half] = sum16[half] = sum256[half] = _mm256_setzero_si256();
    PELLUCID_UNROLL
    for (int v = J0 / 2; v < J1 / 2; ++v) {
      const __m256i x0 = broadcast4(a + 16 * v), x1 = broadcast4(a + 16 * v + 4);
      const __m256i x2 = broadcast4(a + 16 * v + 8), x3 = broadcast4(a + 16 * v + 12);
      for (int half = 0; half < 2; ++half) {
        const __m256i packed = load256(codes + 64 * v + 32 * half);
        sum[half] = add_products(sum[half], _mm256_and_si256(packed, nibble), x0);
        sum16[half] = add_products(sum16[half], _mm256_and_si256(packed, nibble16), x2);
        sum256[half] = add_products(sum256[half], _mm256_and_si256(packed, nibble256), x1);
        sum[half] = add_products(sum[half], _mm256_srli_epi16(packed, 12), x3);
      }
    }
    for (int half = 0; half < 2; ++half)
      sum[half] = _mm256_add_epi32(sum[half], _mm256_add_epi32(_mm256_srai_epi32(sum16[half], 4), _mm256_srai_epi32(sum256[half], 8)));
    return {sum[0], sum[1]};
  }
};

// One byte an activation. Without kByteSums, vpmaddubsw gives sums of two products in 16 bits, which are added there as
// long as they fit. Codes of all eight bits do not fit themselves: they are taken less 128, as a size and a sign that goes
// to the activation.
template <Code CODE, bool READY>
struct Unit<1, CODE, READY> {
  static constexpr bool kCentred = !kByteSums && (CODE == Code::Bits8 || CODE == Code::Table4);
  static constexpr int kFit = kByteSums || CODE == Code::Bits4 ? 8 : CODE == Code::Bits5 ? 4 : 2;
  const uint8_t* codes;
  const uint8_t* table;
  __m256i ready[READY ? 16 : 1];

  Unit(const uint8_t* unit, const uint8_t* code_table) : codes(unit), table(code_table) {
    if constexpr (READY) {
      PELLUCID_UNROLL
      for (int j = 0; j < 8; ++j)
        for (int half = 0; half < 2; ++half) ready[2 * j + half] = byte_codes(j, half);
    }
  }

  template <int J0, int J1, int M>
  PELLUCID_INLINE void dots(const uint8_t* a, size_t stride, I16 (&s)[M]) const {
    if constexpr (kCentred) {
      centred_dots<J0, J1, M, 0>(a, stride, s);
      centred_dots<J0, J1, M, 1>(a, stride, s);
    } else if constexpr (J1 - J0 <= kFit) {
      short_dots<J0, J1, M>(a, stride, s);
    } else {
      I16 rest[M];
      short_dots<J0, J0 + kFit, M>(a, stride, s);
      dots<J0 + kFit, J1, M>(a, stride, rest);
      PELLUCID_UNROLL
      for (int m = 0; m < M; ++m) s[m] = iadd(s[m], rest[m]);
    }
  }

 private:
  // Columns 4j … 4j + 3 of eight rows; less 128 where kCentred.
  __m256i byte_codes(int j, int half) const {
    const __m256i c = code_bytes<CODE>(codes, table, j, half);
    return kCentred ? _mm256_xor_si256(c, _mm256_set1_epi8(-128)) : c;
  }
  __m256i columns(int j, int half) const { return READY ? ready[2 * j + half] : byte_codes(j, half); }

  static __m256i add_codes(__m256i sum, __m256i w, __m256i x) {
    if constexpr (kByteSums) return add_byte_products(sum, w, x);
    sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(w, x));
    asm("" : "+x"(sum));
    return sum;
  }

  // So few columns that all sums fit: into 16 bits, which are widened at the end, or with kByteSums into 32.
  template <int J0, int J1, int M>
  PELLUCID_INLINE void short_dots(const uint8_t* a, size_t stride, I16 (&s)[M]) const {
    PELLUCID_UNROLL
    for (int m = 0; m < M; ++m) s[m] = iset1(0);
    PELLUCID_UNROLL
    for (int j = J0; j < J1; ++j) {
      const __m256i w0 = columns(j, 0), w1 = columns(j, 1);
      PELLUCID_UNROLL
      for (int m = 0; m < M; ++m) {
        const __m256i x = broadcast4(a + static_cast<size_t>(m) * stride + 4 * j);
        s[m] = {add_codes(s[m].a, w0, x), add_codes(s[m].b, w1, x)};
      }
    }
    if constexpr (kByteSums) return;
    const __m256i ones = _mm256_set1_epi16(1);
    PELLUCID_UNROLL
    for (int m = 0; m < M; ++m) s[m] = {_mm256_madd_epi16(s[m].a, ones), _mm256_madd_epi16(s[m].b, ones)};
  }

  // Eight of the sixteen rows: registers have room for no more sums of 32 bits.
  template <int J0, int J1, int M, int HALF>
  PELLUCID_INLINE void centred_dots(const uint8_t* a, size_t stride, I16 (&s)[M]) const {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i sum[M];
    PELLUCID_UNROLL
    for (int m = 0; m < M; ++m) sum[m] = _mm256_setzero_si256();
    PELLUCID_UNROLL
    for (int j = J0; j < J1; ++j) {
      const __m256i w = columns(j, HALF), size = _mm256_abs_epi8(w);
      PELLUCID_UNROLL
      for (int m = 0; m < M; ++m) {
        const __m256i x = broadcast4(a + static_cast<size_t>(m) * stride + 4 * j);
        sum[m] = add_products(sum[m], _mm256_maddubs_epi16(size, _mm256_sign_epi8(x, w)), ones);
      }
    }
    PELLUCID_UNROLL
    for (int m = 0; m < M; ++m) (HALF == 0 ? s[m].a : s[m].b) = sum[m];
  }
};

}  // namespace
