// What a tile implementation offers: tiles_amx.h (the instructions) and tiles_emulated.h (the same in C++).
#pragma once
#include <cstdint>

namespace {

// The operand of LDTILECFG (Intel SDM, volume 1, section 18.3): sizes of the tiles a thread uses.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t bytes_per_row[16] = {};
  uint8_t rows[16] = {};

  constexpr void set(int tile, int row_count, int row_bytes) {
    rows[tile] = static_cast<uint8_t>(row_count);
    bytes_per_row[tile] = static_cast<uint16_t>(row_bytes);
  }
};
static_assert(sizeof(TileConfig) == 64);

}  // namespace
