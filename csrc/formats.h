// The packed weight formats: what a panel of 16 output rows looks like, for every type a model file may hold.
//
// An integer type becomes unsigned codes q with a scale per group of 16 or 32 columns, and either a fixed centre
// (w = s · (q − centre)) or a minimum per group (w = s · q + m). A panel of K columns is stored as
//   codes   K/32 units of 16 rows × 32 columns; byte 64·v + 4·row + (column mod 4) holds, for 4- to 6-bit codes, the
//           low four bits of column group 2v in its low nibble and of 2v + 1 in its high nibble; further bits follow as
//           planes of one bit per code; 8-bit codes are whole bytes
//   scales  K/group · 16 numbers, half or float as exactness asks, then the minima likewise
// A float type (F32, F16, BF16) is stored column by column: 16 rows side by side.
#pragma once
#include <cstddef>
#include <cstdint>

namespace pellucid {

constexpr int kPanelRows = 16;
constexpr int kGroup = 32;  // columns that share one activation scale

enum class Code : uint8_t { Float32, Float16, BFloat16, Bits4, Bits5, Bits6, Bits8, Table4 };

struct Format {
  int ggml_type;
  const char* name;
  Code code;
  int group;         // columns per scale: 16 or 32
  int center_log2;   // centre = 1 << center_log2; −1: minima instead
  bool wide_scale;   // float32 scales and minima; else float16
  int block_size;    // weights of a source block
  int block_bytes;   // bytes of a source block
  const uint8_t* table;  // 16 codes, for Table4

  bool is_float() const { return code <= Code::BFloat16; }
  bool affine() const { return center_log2 < 0; }
  size_t float_bytes() const { return code == Code::Float32 ? 4 : 2; }
  size_t scale_bytes() const { return wide_scale ? 4 : 2; }
  size_t unit_bytes() const {  // codes of 16 rows × 32 columns
    return code == Code::Bits8 ? 512 : code == Code::Bits6 ? 384 : code == Code::Bits5 ? 320 : 256;
  }
  size_t codes_bytes(int64_t columns) const { return static_cast<size_t>(columns / kGroup) * unit_bytes(); }
  size_t scales_bytes(int64_t columns) const {
    return static_cast<size_t>(columns / group) * kPanelRows * scale_bytes();
  }
  size_t panel_bytes(int64_t columns) const {
    if (is_float()) return static_cast<size_t>(columns) * kPanelRows * float_bytes();
    return codes_bytes(columns) + scales_bytes(columns) * (affine() ? 2 : 1);
  }
};

constexpr int kNumFormats = 16;
extern const Format kFormats[kNumFormats];

// Index into kFormats of a GGML type id, or −1.
int format_index(int ggml_type);

}  // namespace pellucid
