#include "packed_matrix.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>

#include "block_decoders.h"
#include "thread_pool.h"

namespace pellucid {

namespace {

// The 16 values of each table type, plus 128.
constexpr uint8_t kIq4Table[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
constexpr uint8_t kMxfp4Table[16] = {128, 129, 130, 131, 132, 134, 136, 140, 128, 127, 126, 125, 124, 122, 120, 116};

using Decoder = void (*)(const uint8_t*, DecodedRow);
// Of the types whose scales become floats.
constexpr Decoder kDecoders[kNumFormats] = {
    nullptr,      nullptr,      nullptr,      nullptr,      nullptr,      nullptr, nullptr,        nullptr,
    blocks::q2_k, blocks::q3_k, blocks::q4_k, blocks::q5_k, blocks::q6_k, nullptr, blocks::iq4_xs, blocks::mxfp4,
};

}  // namespace

const Format kFormats[kNumFormats] = {
    // type, name, code, group, centre, wide, block, bytes, table
    {0, "F32", Code::Float32, 0, 0, true, 1, 4, nullptr},
    {1, "F16", Code::Float16, 0, 0, true, 1, 2, nullptr},
    {30, "BF16", Code::BFloat16, 0, 0, true, 1, 2, nullptr},
    {2, "Q4_0", Code::Bits4, 32, 3, false, 32, 18, nullptr},
    {3, "Q4_1", Code::Bits4, 32, -1, false, 32, 20, nullptr},
    {6, "Q5_0", Code::Bits5, 32, 4, false, 32, 22, nullptr},
    {7, "Q5_1", Code::Bits5, 32, -1, false, 32, 24, nullptr},
    {8, "Q8_0", Code::Bits8, 32, 7, false, 32, 34, nullptr},
    {10, "Q2_K", Code::Bits4, 16, -1, true, 256, 84, nullptr},
    {11, "Q3_K", Code::Bits4, 16, 2, true, 256, 110, nullptr},
    {12, "Q4_K", Code::Bits4, 32, -1, true, 256, 144, nullptr},
    {13, "Q5_K", Code::Bits5, 32, -1, true, 256, 176, nullptr},
    {14, "Q6_K", Code::Bits6, 16, 5, true, 256, 210, nullptr},
    {20, "IQ4_NL", Code::Table4, 32, 7, false, 32, 18, kIq4Table},
    {23, "IQ4_XS", Code::Table4, 32, 7, true, 256, 136, kIq4Table},
    {39, "MXFP4", Code::Table4, 32, 7, true, 32, 17, kMxfp4Table},
};

int format_index(int ggml_type) {
  for (int i = 0; i < kNumFormats; ++i)
    if (kFormats[i].ggml_type == ggml_type) return i;
  return -1;
}

namespace {

// Puts one decoded row into its lane of the panel; its scales are floats.
void place_row(const Format& f, const DecodedRow& r, int64_t columns, int lane, uint8_t* panel) {
  for (int64_t u = 0; u < columns / 32; ++u) {
    uint8_t* unit = panel + static_cast<size_t>(u) * f.unit_bytes();
    const uint8_t* q = r.q + 32 * u;
    for (int v = 0; v < 4; ++v) {
      uint32_t even, odd;
      std::memcpy(&even, q + 8 * v, 4);
      std::memcpy(&odd, q + 8 * v + 4, 4);
      const uint32_t packed = (even & 0x0f0f0f0fu) | ((odd & 0x0f0f0f0fu) << 4);
      std::memcpy(unit + 64 * v + 4 * lane, &packed, 4);
    }
    const int planes = f.code == Code::Bits5 ? 1 : f.code == Code::Bits6 ? 2 : 0;
    for (int p = 0; p < planes; ++p)
      for (int j = 0; j < 8; ++j) {
        uint32_t word;
        std::memcpy(&word, q + 4 * j, 4);
        const uint32_t bits = (word >> (4 + p)) & 0x01010101u;
        const uint8_t four = static_cast<uint8_t>((bits | bits >> 7 | bits >> 14 | bits >> 21) & 15u);
        unit[256 + 64 * p + 8 * j + lane / 2] |= static_cast<uint8_t>(four << (4 * (lane & 1)));
      }
  }
  const auto put = [&](uint8_t* base, const float* numbers) {
    for (int64_t g = 0; g < columns / f.group; ++g) std::memcpy(base + (g * 16 + lane) * 4, numbers + g, 4);
  };
  uint8_t* scales = panel + f.codes_bytes(columns);
  put(scales, r.scale);
  if (f.affine()) put(scales + f.scales_bytes(columns), r.minimum);
}

// The same from the blocks of a type with 32 weights and halves as scales, as they lie, with nothing decoded in between:
// [scale, minimum,] [fifth bits,] then codes, of which those of 4 and 5 bits have columns 0-15 in the low nibbles.
void place_blocks(const Format& f, const uint8_t* from, int64_t columns, int lane, uint8_t* panel) {
  const bool bytes = f.code == Code::Bits8, fifth = f.code == Code::Bits5;
  const int codes_at = f.block_bytes - (bytes ? 32 : 16);
  uint8_t* scales = panel + f.codes_bytes(columns) + 2 * lane;
  uint8_t* minima = scales + f.scales_bytes(columns);
  const size_t unit_bytes = f.unit_bytes();
  for (int64_t u = 0; u < columns / 32; ++u, from += f.block_bytes) {
    uint8_t* unit = panel + static_cast<size_t>(u) * unit_bytes;
    std::memcpy(scales + 32 * u, from, 2);
    if (f.affine()) std::memcpy(minima + 32 * u, from + 2, 2);
    uint32_t w[8];
    std::memcpy(w, from + codes_at, bytes ? 32 : 16);
    uint8_t* out = unit + 4 * lane;
    if (bytes) {
      for (int j = 0; j < 8; ++j) {
        const uint32_t shifted = w[j] ^ 0x80808080u;  // + 128
        std::memcpy(out + 64 * j, &shifted, 4);
      }
      continue;
    }
    constexpr uint32_t kLow = 0x0f0f0f0fu;
    for (int v = 0; v < 2; ++v) {
      const uint32_t even = w[2 * v], odd = w[2 * v + 1];
      const uint32_t low = (even & kLow) | ((odd & kLow) << 4), high = ((even >> 4) & kLow) | (odd & ~kLow);
      std::memcpy(out + 64 * v, &low, 4);
      std::memcpy(out + 64 * (v + 2), &high, 4);
    }
    if (!fifth) continue;
    uint32_t bits;
    std::memcpy(&bits, from + codes_at - 4, 4);
    for (int j = 0; j < 8; ++j)
      unit[256 + 8 * j + lane / 2] |= static_cast<uint8_t>(((bits >> (4 * j)) & 15u) << (4 * (lane & 1)));
  }
}

void pack_panel(int format, const SegmentSource& src, int64_t panel_index, int64_t columns, DecodedRow scratch,
                uint8_t* panel) {
  const Format& f = kFormats[format];
  const size_t row_bytes = src.bytes / static_cast<size_t>(src.rows);
  for (int lane = 0; lane < kPanelRows; ++lane) {
    const int64_t row = panel_index * kPanelRows + lane;
    if (row >= src.rows) break;  // the arena is zeroed: missing rows have zero scales
    const uint8_t* from = src.data + static_cast<size_t>(src.row_order ? src.row_order[row] : row) * row_bytes;
    if (f.is_float()) {
      const size_t size = f.float_bytes();
      for (int64_t k = 0; k < columns; ++k)
        std::memcpy(panel + static_cast<size_t>(k * kPanelRows + lane) * size, from + static_cast<size_t>(k) * size, size);
      continue;
    }
    if (!f.wide_scale) {
      place_blocks(f, from, columns, lane, panel);
      continue;
    }
    const int groups = f.block_size / f.group;
    for (int64_t b = 0; b < columns / f.block_size; ++b)
      kDecoders[format](from + b * f.block_bytes, {scratch.q + b * f.block_size, scratch.scale + b * groups,
                                                   scratch.minimum + b * groups});
    place_row(f, scratch, columns, lane, panel);
  }
}

// Gives the whole pages inside [begin, end) of a mapped file back to the system; they are read again if touched.
void drop_pages(const uint8_t* begin, const uint8_t* end) {
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t first = (reinterpret_cast<uintptr_t>(begin) + page - 1) & ~(page - 1);
  const uintptr_t last = reinterpret_cast<uintptr_t>(end) & ~(page - 1);
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

// Packs in pieces, and drops each piece's source, so that a large matrix is never in memory twice. A small one is left to
// the caller: to drop its pages a few at a time would take longer than to pack them.
void pack_segment(ThreadPool& pool, const SegmentSource& src, const Segment& seg, int64_t columns) {
  constexpr int64_t kMostPanels = 64;
  constexpr size_t kSmall = size_t{4} << 20;
  const int64_t piece = std::clamp<int64_t>(seg.panels / (2 * pool.size()), 1, kMostPanels);
  const bool drops = src.mapped && !src.row_order && src.bytes > kSmall;
  const size_t panel_source = src.bytes / static_cast<size_t>(src.rows) * kPanelRows;
  const size_t groups = static_cast<size_t>(columns / 16 + 1), workers = static_cast<size_t>(pool.size());
  // Allocated here: a worker that runs out of memory could not tell the caller.
  std::vector<uint8_t> q(static_cast<size_t>(columns) * workers);
  std::vector<float> scale(groups * workers), minimum(groups * workers);
  std::atomic<int64_t> next{0};
  pool.run([&](int worker) {
    const size_t w = static_cast<size_t>(worker);
    const DecodedRow scratch{q.data() + w * static_cast<size_t>(columns), scale.data() + w * groups, minimum.data() + w * groups};
    for (int64_t begin = next.fetch_add(piece); begin < seg.panels; begin = next.fetch_add(piece)) {
      const int64_t end = std::min(begin + piece, seg.panels);
      for (int64_t p = begin; p < end; ++p)
        pack_panel(seg.format, src, p, columns, scratch, seg.data + static_cast<size_t>(p) * seg.panel_bytes);
      if (drops)
        drop_pages(src.data + static_cast<size_t>(begin) * panel_source,
                   src.data + std::min(static_cast<size_t>(end) * panel_source, src.bytes));
    }
  });
}

[[noreturn]] void refuse(const std::string& why) { throw std::invalid_argument(why); }

}  // namespace

PackedMatrix::PackedMatrix(Arena& arena, ThreadPool& pool, const std::vector<SegmentSource>& sources, int64_t columns)
    : columns_(columns) {
  if (sources.empty() || columns <= 0) refuse("a matrix needs at least one part and one column");
  for (const SegmentSource& s : sources) {
    const int format = format_index(s.ggml_type);
    if (format < 0) refuse("weight type " + std::to_string(s.ggml_type) + " has no kernel");
    const Format& f = kFormats[format];
    if (s.rows <= 0 || columns % f.block_size != 0 || (!f.is_float() && columns % kGroup != 0))
      refuse(std::string("a ") + f.name + " matrix needs rows and a multiple of " + std::to_string(f.block_size) + " columns");
    if (s.bytes != static_cast<size_t>(s.rows) * static_cast<size_t>(columns / f.block_size) * static_cast<size_t>(f.block_bytes))
      refuse("the data's size does not fit the matrix's shape");
    for (int64_t i = 0; s.row_order && i < s.rows; ++i)
      if (s.row_order[i] < 0 || s.row_order[i] >= s.rows) refuse("row_order names a row outside the matrix");
    Segment seg{format, s.rows, rows_, panels_, (s.rows + kPanelRows - 1) / kPanelRows, f.panel_bytes(columns), nullptr};
    seg.data = arena.allocate(seg.panel_bytes * static_cast<size_t>(seg.panels));
    bytes_ += seg.panel_bytes * static_cast<size_t>(seg.panels);
    rows_ += s.rows;
    panels_ += seg.panels;
    (f.is_float() ? has_float_ : has_int_) = true;
    segments_.push_back(seg);
  }
  for (size_t i = 0; i < sources.size(); ++i) pack_segment(pool, sources[i], segments_[i], columns);
}

}  // namespace pellucid
