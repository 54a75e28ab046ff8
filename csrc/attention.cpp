// Rotation, cache store and attention: which worker takes which rows and which splits of the past.
#include <algorithm>
#include <atomic>

#include "ops.h"

namespace pellucid {

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
