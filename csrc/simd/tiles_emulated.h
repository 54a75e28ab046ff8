// The tile instructions in C++, so that the tile kernels run, and are tested, where the processor has none.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tiles.h"

namespace {

struct EmulatedTiles {
  TileConfig config;
  bool configured = false;
  uint8_t data[8][16][64];
};
thread_local EmulatedTiles emulated;

// The processor would raise an exception in the same places.
inline void tiles_must(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "tile emulation: %s\n", what);
  std::abort();
}

inline void tiles_configure(const TileConfig& config) {
  tiles_must(config.palette == 1 && config.start_row == 0, "unknown palette");
  for (int t = 0; t < 8; ++t) tiles_must(config.rows[t] <= 16 && config.bytes_per_row[t] <= 64, "a tile is too large");
  emulated.config = config;
  emulated.configured = true;
  std::memset(emulated.data, 0, sizeof emulated.data);
}
inline void tiles_release() {
  tiles_must(emulated.configured, "released twice");
  emulated.configured = false;
}

template <int T>
inline void tile_zero() {
  tiles_must(emulated.configured && emulated.config.rows[T] > 0, "a tile is not configured");
  std::memset(emulated.data[T], 0, sizeof emulated.data[T]);
}
template <int T>
inline void tile_load(const void* from, size_t stride) {
  tile_zero<T>();
  for (size_t r = 0; r < emulated.config.rows[T]; ++r)
    std::memcpy(emulated.data[T][r], static_cast<const uint8_t*>(from) + r * stride, emulated.config.bytes_per_row[T]);
}
template <int T>
inline void tile_store(void* to, size_t stride) {
  tiles_must(emulated.configured && emulated.config.rows[T] > 0, "a tile is not configured");
  for (size_t r = 0; r < emulated.config.rows[T]; ++r)
    std::memcpy(static_cast<uint8_t*>(to) + r * stride, emulated.data[T][r], emulated.config.bytes_per_row[T]);
}

template <int C, int A, int B>
inline void tiles_must_fit() {
  const TileConfig& c = emulated.config;
  tiles_must(emulated.configured, "tiles are not configured");
  tiles_must(c.rows[C] == c.rows[A] && c.bytes_per_row[C] == c.bytes_per_row[B] && c.bytes_per_row[A] == 4 * c.rows[B],
             "the tiles of a product do not fit together");
}

template <int C, int A, int B>
inline void tile_dot_bytes() {
  tiles_must_fit<C, A, B>();
  for (int m = 0; m < emulated.config.rows[C]; ++m) {
    int32_t sums[16];
    std::memcpy(sums, emulated.data[C][m], 64);
    for (int k = 0; k < emulated.config.rows[B]; ++k)
      for (int n = 0; n < 16; ++n)
        for (int i = 0; i < 4; ++i)
          sums[n] += static_cast<int8_t>(emulated.data[A][m][4 * k + i]) * static_cast<int32_t>(emulated.data[B][k][4 * n + i]);
    std::memcpy(emulated.data[C][m], sums, 64);
  }
}

// Even and odd members of the pairs have sums of their own, added to C at the end (Intel SDM, TDPBF16PS).
template <int C, int A, int B>
inline void tile_dot_bf16() {
  tiles_must_fit<C, A, B>();
  const auto number = [](const uint8_t* at) {
    uint16_t half;
    std::memcpy(&half, at, 2);
    const uint32_t bits = static_cast<uint32_t>(half) << 16;
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
  };
  for (int m = 0; m < emulated.config.rows[C]; ++m) {
    float sums[16], part[2][16] = {};
    std::memcpy(sums, emulated.data[C][m], 64);
    for (int k = 0; k < emulated.config.rows[B]; ++k)
      for (int n = 0; n < 16; ++n)
        for (int i = 0; i < 2; ++i)
          part[i][n] += number(emulated.data[A][m] + 4 * k + 2 * i) * number(emulated.data[B][k] + 4 * n + 2 * i);
    for (int n = 0; n < 16; ++n) sums[n] += part[0][n] + part[1][n];
    std::memcpy(emulated.data[C][m], sums, 64);
  }
}

}  // namespace
