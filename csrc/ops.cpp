#include "ops.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace pellucid {

namespace {

uint8_t* align64(std::vector<uint8_t>& buffer, size_t bytes) {
  if (buffer.size() < bytes + 64) buffer.resize(bytes + 64);
  return reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(buffer.data()) + 63) & ~uintptr_t{63});
}

}  // namespace

Runtime::Runtime(int threads, const std::string& isa) : kernels_(choose_kernels(isa)), pool_(threads) {}

std::unique_ptr<PackedMatrix> Runtime::pack(const std::vector<SegmentSource>& sources, int64_t columns) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::make_unique<PackedMatrix>(arena_, pool_, sources, columns);
}

// f(i) for each of `count` rows; a handful is done before other workers would be awake.
template <class F>
void Runtime::each_row(int64_t count, F f) {
  if (count < 8) {
    for (int64_t i = 0; i < count; ++i) f(i);
    return;
  }
  Shares shares(count, pool_.size());
  pool_.run([&](int worker) { shares.each(worker, f); });
}

void Runtime::embed(const PackedMatrix& table, const int32_t* ids, float scale, Rows out) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto one = [&](int64_t i) {
    const Segment& seg = table.segment_of_row(ids[i]);
    const int64_t row = ids[i] - seg.first_row;
    kernels_.decode_row(kFormats[seg.format], seg.panel(row / kPanelRows), table.columns(),
                        static_cast<int>(row % kPanelRows), scale, out.row(i));
  };
  each_row(out.count, one);
}

void Runtime::rms_norm(Rows x, Norm norm, Rows out) {
  const std::lock_guard<std::mutex> lock(mutex_);
  each_row(x.count, [&](int64_t i) { kernels_.rms_norm_row(x.row(i), norm.weight, norm.eps, x.width, out.row(i)); });
}

void Runtime::rms_norm_add(Rows x, Norm norm, Rows residual) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto one = [&](int64_t i) {
    kernels_.rms_norm_add_row(x.row(i), norm.weight, norm.eps, x.width, residual.row(i));
  };
  each_row(x.count, one);
}

void Runtime::linear(Rows x, Norm norm, const PackedMatrix& w, Rows out) {
  product(x, norm, w, Epilogue::Store, Activation::Silu, out);
}
void Runtime::linear_add(Rows x, const PackedMatrix& w, Rows residual) {
  product(x, {nullptr, 0.0f}, w, Epilogue::Add, Activation::Silu, residual);
}
void Runtime::linear_gated(Rows x, Norm norm, const PackedMatrix& w, Activation activation, Rows out) {
  product(x, norm, w, Epilogue::Gate, activation, out);
}

void Runtime::product(Rows x, Norm norm, const PackedMatrix& w, Epilogue epilogue, Activation activation, Rows out) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (x.count == 0) return;
  const int workers = pool_.size();
  const int64_t k = w.columns();
  const size_t qstride = w.has_int() ? QuantizedRow::bytes(k) : 0;
  const bool need_rows = norm.weight != nullptr;  // normalised rows need a place of their own
  // A row or two are prepared by every worker for itself: cheaper than waiting for each other.
  const bool redundant = x.count <= 2;
  const size_t copies = redundant ? static_cast<size_t>(workers) : 1;
  const size_t qbytes = qstride * static_cast<size_t>(x.count);
  const size_t fcount = need_rows ? static_cast<size_t>(x.count * k) : 0;
  uint8_t* const qbase = align64(quantized_, qbytes * copies);
  if (normalized_.size() < fcount * copies) normalized_.resize(fcount * copies);
  float* const fbase = normalized_.data();

  const auto prepare = [&](int64_t i, uint8_t* q, float* f) {
    const float* row = x.row(i);
    if (need_rows) {
      kernels_.rms_norm_row(row, norm.weight, norm.eps, k, f + i * k);
      row = f + i * k;
    }
    if (qstride) kernels_.quantize_row(row, k, q + static_cast<size_t>(i) * qstride);
  };
  if (!redundant) {
    Shares rows(x.count, workers);
    pool_.run([&](int worker) { rows.each(worker, [&](int64_t i) { prepare(i, qbase, fbase); }); });
  }
  Shares panels(epilogue == Epilogue::Gate ? w.panels() / 2 : w.panels(), workers);
  pool_.run([&](int worker) {
    uint8_t* const q = qbase + (redundant ? static_cast<size_t>(worker) * qbytes : 0);
    float* const f = fbase + (redundant ? static_cast<size_t>(worker) * fcount : 0);
    for (int64_t i = 0; redundant && i < x.count; ++i) prepare(i, q, f);
    const float* frows = need_rows ? f : x.data;
    const size_t fstride = static_cast<size_t>(need_rows ? k : x.stride) * 4;
    panels.each(worker, [&](int64_t p) { finish_panel(w, q, qstride, frows, fstride, p, epilogue, activation, out); });
  });
}

void Runtime::finish_panel(const PackedMatrix& w, const uint8_t* qrows, size_t qstride, const float* frows,
                           size_t fstride, int64_t panel, Epilogue epilogue, Activation activation, Rows out) const {
  constexpr int kBlock = 64;
  alignas(64) float first[kBlock * kPanelRows];
  alignas(64) float second[kBlock * kPanelRows];
  const auto multiply = [&](int64_t p, int64_t row, int count, float* to) -> const Segment& {
    const Segment& seg = w.segment_of_panel(p);
    const bool as_float = kFormats[seg.format].is_float();
    const size_t stride = as_float ? fstride : qstride;
    const uint8_t* rows = (as_float ? reinterpret_cast<const uint8_t*>(frows) : qrows) + static_cast<size_t>(row) * stride;
    kernels_.panel[seg.format](seg.panel(p - seg.first_panel), w.columns(), rows, stride, count, to);
    return seg;
  };
  for (int64_t row = 0; row < out.count; row += kBlock) {
    const int count = static_cast<int>(std::min<int64_t>(kBlock, out.count - row));
    const Segment& seg = multiply(panel, row, count, first);
    const int64_t local = (panel - seg.first_panel) * kPanelRows;
    const int64_t column = seg.first_row + local;
    const int64_t width = std::min<int64_t>(kPanelRows, seg.rows - local);
    if (epilogue == Epilogue::Gate) multiply(panel + w.panels() / 2, row, count, second);
    for (int i = 0; i < count; ++i) {
      float* to = out.row(row + i) + column;
      const float* from = first + i * kPanelRows;
      if (epilogue == Epilogue::Store) {
        std::memcpy(to, from, static_cast<size_t>(width) * 4);
      } else if (epilogue == Epilogue::Add) {
        for (int64_t j = 0; j < width; ++j) to[j] += from[j];
      } else {
        kernels_.gate_row(from, second + i * kPanelRows, activation, width, to);
      }
    }
  }
}

void Runtime::rotate_and_store(Rows qkv, const AttentionShape& shape, Norm q_norm, Norm k_norm, const float* cosine,
                               const float* sine, int64_t half_dim, const StepView& step, const KVView& kv,
                               bool* nonfinite) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int64_t dim = kv.head_dim;
  const auto one = [&](int64_t i) {
    const float *c = cosine + i * half_dim, *s = sine + i * half_dim;
    float* row = qkv.row(i);
    for (int64_t h = 0; h < shape.heads + kv.heads; ++h) {
      float* head = row + h * dim;
      const Norm& norm = h < shape.heads ? q_norm : k_norm;
      if (norm.weight) kernels_.rms_norm_row(head, norm.weight, norm.eps, dim, head);
      kernels_.rotate_row(head, c, s, half_dim);
    }
    const float* key = row + shape.heads * dim;
    const float* value = key + kv.heads * dim;
    bool finite = true;
    for (int64_t h = 0; h < kv.heads; ++h)
      finite &= kernels_.store_kv(kv, step.slots[i] / kv.block_size, step.slots[i] % kv.block_size, h, key + h * dim,
                                  value + h * dim);
    if (!finite) nonfinite[i] = true;
  };
  each_row(step.rows, one);
}

// Queries of one sequence and KV head, up to a tile: pair p of the sequence is row p / group, head p % group.
struct Runtime::Tile {
  int64_t sequence;
  int64_t kv_head;
  int64_t first;
  int queries;
};

// A tile with its pointers, built on the worker's stack.
struct Runtime::TileTask {
  AttendTask task;
  const float* q[kMaxAttentionQueries];
  float* out[kMaxAttentionQueries];
  int64_t lo[kMaxAttentionQueries];
  int64_t hi[kMaxAttentionQueries];
  int64_t split_begin, split_end;

  TileTask(const Tile& tile, const Rows& qkv, const AttentionShape& shape, const StepView& step, const KVView& kv,
           const Rows& to) {
    const int64_t group = shape.heads / kv.heads;
    int64_t lowest = INT64_MAX, highest = 0;
    for (int i = 0; i < tile.queries; ++i) {
      const int64_t row = step.query_start_loc[tile.sequence] + (tile.first + i) / group;
      const int64_t head = tile.kv_head * group + (tile.first + i) % group;
      q[i] = qkv.row(row) + head * kv.head_dim;
      out[i] = to.row(row) + head * kv.head_dim;
      hi[i] = step.positions[row] + 1;
      lo[i] = shape.window > 0 ? std::max<int64_t>(0, hi[i] - shape.window) : 0;
      lowest = std::min(lowest, lo[i]);
      highest = std::max(highest, hi[i]);
    }
    split_begin = lowest / kSplit;
    split_end = (highest + kSplit - 1) / kSplit;
    task = {kv, step.block_table + tile.sequence * step.max_blocks, tile.kv_head, tile.queries, q, lo, hi, shape.scale};
  }
  TileTask(const TileTask&) = delete;  // `task` points into the object itself
};

// What all tiles of one call share.
struct Runtime::AttentionCall {
  const Rows& qkv;
  const AttentionShape& shape;
  const StepView& step;
  const KVView& kv;
  const Rows& out;
  TileTask task(const Tile& tile) const { return TileTask(tile, qkv, shape, step, kv, out); }
};

void Runtime::attention(Rows qkv, const AttentionShape& shape, const StepView& step, const KVView& kv, Rows out) {
  const std::lock_guard<std::mutex> lock(mutex_);
  constexpr int kTile = 12;
  const int64_t group = shape.heads / kv.heads;
  const AttentionCall call{qkv, shape, step, kv, out};
  std::vector<Tile> tiles;
  int64_t longest = 0;
  for (int64_t s = 0; s < step.sequences; ++s) {
    const int64_t begin = step.query_start_loc[s], end = step.query_start_loc[s + 1];
    if (end > begin) longest = std::max<int64_t>(longest, step.positions[end - 1] + 1);
    const int64_t pairs = (end - begin) * group;
    for (int64_t h = 0; h < kv.heads; ++h)
      for (int64_t p = 0; p < pairs; p += kTile)
        tiles.push_back({s, h, p, static_cast<int>(std::min<int64_t>(kTile, pairs - p))});
  }
  const int64_t count = static_cast<int64_t>(tiles.size());
  // A little work is done before other workers are awake.
  const bool little = count <= 4 && count * longest <= 96;
  if (pool_.size() == 1 || little) {
    for (const Tile& tile : tiles) attend_tile(call, tile);
  } else if (count >= 4 * pool_.size() || longest <= kSplit) {
    std::atomic<int64_t> next{count};  // the last rows see the most and go first
    pool_.run([&](int) {
      for (int64_t i = --next; i >= 0; i = --next) attend_tile(call, tiles[static_cast<size_t>(i)]);
    });
  } else {
    attend_by_splits(call, tiles);
  }
}

// One worker takes all splits of a tile, and merges as it goes.
void Runtime::attend_tile(const AttentionCall& call, const Tile& tile) const {
  const int64_t dim = call.kv.head_dim;
  TileTask t = call.task(tile);
  SoftmaxState states[kMaxAttentionQueries] = {}, next[kMaxAttentionQueries];
  alignas(64) float acc[kMaxAttentionQueries * kMaxHeadDim], partial[kMaxAttentionQueries * kMaxHeadDim];
  for (int64_t split = t.split_begin; split < t.split_end; ++split) {
    kernels_.attend_split(t.task, split, next, partial);
    for (int i = 0; i < tile.queries; ++i)
      kernels_.merge_split(states[i], acc + i * dim, next[i], partial + i * dim, dim);
  }
  for (int i = 0; i < tile.queries; ++i) kernels_.finish_row(states[i], acc + i * dim, dim, t.out[i]);
}

// Few rows with a long past: the splits are shared out, then merged in ascending order, as one worker would.
void Runtime::attend_by_splits(const AttentionCall& call, const std::vector<Tile>& tiles) {
  struct Piece {
    const Tile* tile;
    int64_t split;
  };
  const int64_t dim = call.kv.head_dim;
  std::vector<Piece> pieces;
  std::vector<size_t> first_piece;
  for (const Tile& tile : tiles) {
    const TileTask t = call.task(tile);
    first_piece.push_back(pieces.size());
    for (int64_t split = t.split_begin; split < t.split_end; ++split) pieces.push_back({&tile, split});
  }
  first_piece.push_back(pieces.size());
  const size_t piece_floats = kMaxAttentionQueries * static_cast<size_t>(dim);
  std::vector<SoftmaxState> states(pieces.size() * kMaxAttentionQueries);
  if (partial_.size() < pieces.size() * piece_floats) partial_.resize(pieces.size() * piece_floats);
  Shares shares(static_cast<int64_t>(pieces.size()), pool_.size());
  pool_.run([&](int worker) {
    shares.each(worker, [&](int64_t i) {
      const size_t at = static_cast<size_t>(i);
      TileTask t = call.task(*pieces[at].tile);
      kernels_.attend_split(t.task, pieces[at].split, &states[at * kMaxAttentionQueries], &partial_[at * piece_floats]);
    });
  });
  alignas(64) float acc[kMaxHeadDim];
  for (size_t i = 0; i < tiles.size(); ++i) {
    const TileTask t = call.task(tiles[i]);
    for (int q = 0; q < tiles[i].queries; ++q) {
      SoftmaxState state = {};
      for (size_t at = first_piece[i]; at < first_piece[i + 1]; ++at)
        kernels_.merge_split(state, acc, states[at * kMaxAttentionQueries + static_cast<size_t>(q)],
                             &partial_[at * piece_floats + static_cast<size_t>(q * dim)], dim);
      kernels_.finish_row(state, acc, dim, t.out[q]);
    }
  }
}

}  // namespace pellucid
