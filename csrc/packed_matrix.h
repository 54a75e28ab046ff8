// A weight matrix in panels of 16 rows, made of one or more row segments that may differ in type.
#pragma once
#include <cstdint>
#include <vector>

#include "arena.h"
#include "formats.h"

namespace pellucid {

class ThreadPool;

struct SegmentSource {
  const uint8_t* data;  // rows in the GGUF block layout, one after another
  size_t bytes;
  int ggml_type;
  int64_t rows;
  const int32_t* row_order;  // row_order[i]: the source row that becomes row i; nullptr: as they lie
  bool mapped;               // data is a mapped file: its pages may be dropped once they are packed
};

struct Segment {
  int format;  // index into kFormats
  int64_t rows;
  int64_t first_row;    // in the whole matrix
  int64_t first_panel;  // in the whole matrix
  int64_t panels;
  size_t panel_bytes;
  uint8_t* data;
  const uint8_t* panel(int64_t i) const { return data + static_cast<size_t>(i) * panel_bytes; }
};

class PackedMatrix {
 public:
  // Throws std::invalid_argument if sizes and types do not fit together.
  PackedMatrix(Arena& arena, ThreadPool& pool, const std::vector<SegmentSource>& sources, int64_t columns);

  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  int64_t panels() const { return panels_; }
  size_t bytes() const { return bytes_; }
  bool has_int() const { return has_int_; }
  bool has_float() const { return has_float_; }
  const std::vector<Segment>& segments() const { return segments_; }
  const Segment& segment_of_panel(int64_t panel) const {
    size_t i = 0;
    while (panel >= segments_[i].first_panel + segments_[i].panels) ++i;
    return segments_[i];
  }
  const Segment& segment_of_row(int64_t row) const {
    size_t i = 0;
    while (row >= segments_[i].first_row + segments_[i].rows) ++i;
    return segments_[i];
  }

 private:
  int64_t rows_ = 0, columns_ = 0, panels_ = 0;
  size_t bytes_ = 0;
  bool has_int_ = false, has_float_ = false;
  std::vector<Segment> segments_;
};

}  // namespace pellucid
