// Rotation, cache store and attention: which worker takes which rows and which splits of the past.
#include <algorithm>
#include <atomic>

#include "ops.h"

namespace pellucid {

namespace {

constexpr float kLog2E = 1.44269504f;
constexpr int kTile = kMaxAttentionQueries;
constexpr int64_t kTilesTogether = 4;  // tiles of a worker that share a split while it is in the second-level cache

void ask_for(const uint8_t* begin, int64_t bytes) {
  for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(begin + line, 0, 2);
}

// Asks for what a row writes in a block: a token's numbers lie on many lines of it.
void ask_for_block(const KVView& kv, int64_t block) {
  ask_for(kv.key(block, 0), kv.heads * kv.key_bytes);
  ask_for(kv.value(block, 0), kv.heads * kv.value_bytes);
}

}  // namespace

void Runtime::rotate_and_store(Rows qkv, const AttentionShape& shape, Norm q_norm, Norm k_norm, const float* cosine,
                               const float* sine, int64_t half_dim, const StepView& step, const KVView& kv,
                               bool* nonfinite) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int64_t dim = kv.head_dim, value_dim = kv.value_dim;
  const auto one = [&](int64_t i) {
    const float *c = cosine + i * half_dim, *s = sine + i * half_dim;
    float* row = qkv.row(i);
    const int64_t block = step.slots[i] / kBlockTokens;
    if (i == 0 || step.slots[i - 1] / kBlockTokens != block) ask_for_block(kv, block);
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
      finite &= kernels_.store_kv(kv, block, step.slots[i] % kBlockTokens, h, key + h * dim, value + h * value_dim);
    if (!finite) nonfinite[i] = true;
  };
  each_row(step.rows, one);
}

// Queries of one sequence and KV head: pair p of the sequence is row p / group, head p % group.
struct Runtime::Tiles {
  int64_t sequence;
  int64_t kv_head;
  int64_t first;
  int64_t pairs;
};

// What all tiles of one call share.
struct Runtime::AttentionCall {
  const Rows& qkv;
  const AttentionShape& shape;
  const StepView& step;
  const KVView& kv;
  const Rows& out;
  int64_t group() const { return shape.heads / kv.heads; }
  const int32_t* table(const Tiles& tiles) const { return step.block_table + tiles.sequence * step.max_blocks; }
  int64_t row(const Tiles& tiles, int64_t pair) const { return step.query_start_loc[tiles.sequence] + pair / group(); }
  int64_t lowest(int64_t row) const {
    return shape.window > 0 ? std::max<int64_t>(0, step.positions[row] + 1 - shape.window) : 0;
  }
};

// The part of a split that some queries see: blocks of one sequence's table.
struct Runtime::Part {
  const int32_t* table;
  int64_t head;
  int64_t begin, end;

  // Of positions [lo, hi).
  Part(const int32_t* blocks, int64_t kv_head, int64_t split, int64_t lo, int64_t hi)
      : table(blocks), head(kv_head), begin(std::max(lo, split * kSplit) / kBlockTokens),
        end((std::min(hi, (split + 1) * kSplit) + kBlockTokens - 1) / kBlockTokens) {}
};

// Up to kTile queries with their pointers. Lives where it is made: `task` points into it.
struct Runtime::Tile {
  AttendTask task;
  const float* q[kTile];
  float* out[kTile];
  int64_t lo[kTile], hi[kTile], own[kTile];
  float slope[kTile], sink[kTile];
  float q_scales[kTile];
  SoftmaxState states[kTile];
  int64_t lowest, highest;  // of lo and hi
  int64_t split_begin, split_end;

  Tile() = default;
  Tile(const Tile&) = delete;

  void fill(const AttentionCall& call, const Tiles& tiles, int64_t first, int16_t* q_codes, const KernelTable& kernels) {
    const auto& [qkv, shape, step, kv, to] = call;
    const int64_t group = call.group();
    const int queries = static_cast<int>(std::min<int64_t>(kTile, tiles.first + tiles.pairs - first));
    lowest = INT64_MAX;
    highest = 0;
    for (int i = 0; i < queries; ++i) {
      const int64_t row = call.row(tiles, first + i);
      const int64_t head = tiles.kv_head * group + (first + i) % group;
      q[i] = qkv.row(row) + head * kv.head_dim;
      out[i] = to.row(row) + head * kv.value_dim;
      own[i] = step.positions[row];
      hi[i] = shape.causal ? own[i] + 1 : step.positions[step.query_start_loc[tiles.sequence + 1] - 1] + 1;
      lo[i] = call.lowest(row);
      slope[i] = shape.slopes ? shape.slopes[head] * kLog2E : 0.0f;
      sink[i] = shape.sinks ? shape.sinks[head] * kLog2E : 0.0f;
      states[i] = {0.0f, 0.0f};
      lowest = std::min(lowest, lo[i]);
      highest = std::max(highest, hi[i]);
    }
    split_begin = lowest / kSplit;
    split_end = (highest + kSplit - 1) / kSplit;
    task = {&kv,  call.table(tiles), tiles.kv_head, queries, q, lo, hi, own, slope,
            shape.scale * kLog2E, {shape.cap * kLog2E, shape.slopes != nullptr}, q_codes, q_scales};
    if (kv.coded()) kernels.pack_queries(task, q_codes, q_scales);
  }
};

// A worker's own memory: queries and sums of its tiles, one split's result, one split of unpacked codes.
struct Runtime::AttentionSpace {
  Tile tiles[kTilesTogether];
  SoftmaxState next[kTile];
  std::vector<float> numbers;
  std::vector<int16_t> codes;
  int64_t head_dim = 0, value_dim = 0;

  void fit(const KVView& kv) {
    head_dim = kv.head_dim;
    value_dim = kv.value_dim;
    const size_t sums = static_cast<size_t>((kTilesTogether + 1) * kTile * value_dim);
    if (numbers.size() < sums) numbers.resize(sums);
    const size_t unpacked = kv.type == KVType::Int16 || !kv.coded() ? 0 : static_cast<size_t>(kSplit * (head_dim + value_dim));
    const size_t wanted = static_cast<size_t>(kTilesTogether * kTile * head_dim) + unpacked;
    if (codes.size() < wanted) codes.resize(wanted);
  }
  float* sums(int64_t tile) { return numbers.data() + tile * kTile * value_dim; }
  float* partial() { return sums(kTilesTogether); }
  int16_t* queries(int64_t tile) { return codes.data() + tile * kTile * head_dim; }
  int16_t* keys(int64_t block) { return queries(kTilesTogether) + block * kBlockTokens * head_dim; }
  int16_t* values(int64_t block) { return keys(kSplitBlocks) + block * kBlockTokens * value_dim; }
};

void Runtime::attention(Rows qkv, const AttentionShape& shape, const StepView& step, const KVView& kv, Rows out) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const AttentionCall call{qkv, shape, step, kv, out};
  if (spaces_.empty())
    for (int i = 0; i < pool_.size(); ++i) spaces_.push_back(std::make_shared<AttentionSpace>());
  for (const auto& space : spaces_) space->fit(kv);
  int64_t longest = 0, all_pairs = 0;
  for (int64_t s = 0; s < step.sequences; ++s) {
    const int64_t begin = step.query_start_loc[s], end = step.query_start_loc[s + 1];
    if (end > begin) longest = std::max<int64_t>(longest, step.positions[end - 1] + 1);
    all_pairs += (end - begin) * shape.heads;
  }
  const bool many = all_pairs >= 4 * kTilesTogether * kTile * pool_.size();
  std::vector<Tiles> work = share_out(call, many ? kTilesTogether * kTile : kTile);
  // A little work is done before other workers are awake.
  const bool little = work.size() <= 4 && static_cast<int64_t>(work.size()) * longest <= 96;
  if (!little && longest <= kSplit && static_cast<int64_t>(work.size()) < pool_.size()) {
    // There is a single split to share, and some workers would have nothing: the queries of a KV head are divided.
    const int64_t most = (all_pairs + pool_.size() - 1) / pool_.size();
    work = share_out(call, std::min<int64_t>(most, kTile));
  }
  const int64_t count = static_cast<int64_t>(work.size());
  if (pool_.size() == 1 || little) {
    for (const Tiles& tiles : work) attend_tiles(call, tiles, &tiles + 1 < work.data() + count ? &tiles + 1 : nullptr, *spaces_[0]);
  } else if (many) {
    std::atomic<int64_t> next{count};  // the last rows see the most and go first
    pool_.run([&](int worker) {
      for (int64_t i = --next; i >= 0; i = --next)
        attend_tiles(call, work[static_cast<size_t>(i)], nullptr, *spaces_[static_cast<size_t>(worker)]);
    });
  } else if (count >= 4 * pool_.size() || longest <= kSplit) {
    // Keys come from memory: a worker goes through its share in order, and knows what is next.
    Shares shares(count, pool_.size());
    pool_.run([&](int worker) {
      shares.each(worker, [&](int64_t i) {
        const Tiles* tiles = &work[static_cast<size_t>(i)];
        attend_tiles(call, *tiles, i + 1 < count ? tiles + 1 : nullptr, *spaces_[static_cast<size_t>(worker)]);
      });
    });
  } else {
    attend_by_splits(call, work);
  }
}

// The call's queries, at most `most` of a KV head together.
std::vector<Runtime::Tiles> Runtime::share_out(const AttentionCall& call, int64_t most) {
  std::vector<Tiles> work;
  for (int64_t s = 0; s < call.step.sequences; ++s) {
    const int64_t pairs = (call.step.query_start_loc[s + 1] - call.step.query_start_loc[s]) * call.group();
    for (int64_t p = 0; p < pairs; p += most)
      for (int64_t h = 0; h < call.kv.heads; ++h) work.push_back({s, h, p, std::min(most, pairs - p)});
  }
  return work;
}

// What the first `count` tiles see of a split: where it lies, or widened to int16. `next` is what this worker looks at
// after it, or nullptr.
SplitCodes Runtime::split_codes(int64_t count, int64_t split, const Part* next, AttentionSpace& space) const {
  const AttendTask& task = space.tiles[0].task;
  const KVView& kv = *task.kv;
  int64_t lo = INT64_MAX, hi = 0, queries = 0;
  for (int64_t i = 0; i < count; ++i) {
    lo = std::min(lo, space.tiles[i].lowest);
    hi = std::max(hi, space.tiles[i].highest);
    queries += space.tiles[i].task.queries;
  }
  const Part part(task.block_table, task.kv_head, split, lo, hi);
  const int64_t first = split * kSplitBlocks, head = part.head;
  const bool widen = kv.type != KVType::Int16 && (queries > kWidenQueries || kv.value_dim % kWidenDim != 0);
  SplitCodes codes;
  codes.type = widen ? KVType::Int16 : kv.type;
  for (int64_t at = part.begin; at < part.end; ++at) {
    const int64_t block = part.table[at], b = at - first;
    codes.key_scales[b] = kv.key_scales(block, head);
    codes.value_scales[b] = kv.value_scales(block, head);
    codes.keys[b] = kv.key(block, head);
    codes.values[b] = kv.value(block, head);
    if (kv.type == KVType::Int4) {
      codes.key_factors[b] = kv.key_factors(block, head);
      codes.value_factors[b] = kv.value_factors(block, head);
    }
    if (widen) {
      kernels_.unpack_keys(kv, block, head, space.keys(b));
      kernels_.unpack_values(kv, block, head, space.values(b));
      codes.keys[b] = reinterpret_cast<const uint8_t*>(space.keys(b));
      codes.values[b] = reinterpret_cast<const uint8_t*>(space.values(b));
    }
    const bool known = next && next->begin + at - part.begin < next->end;
    codes.ahead[b] = known ? kv.key(next->table[next->begin + at - part.begin], next->head) : codes.values[b];
  }
  for (int64_t at = next ? next->begin + part.end - part.begin : 0; next && at < next->end; ++at)
    ask_for(kv.key(next->table[at], next->head), kv.key_bytes);
  return codes;
}

// One worker takes all splits of its tiles, and merges as it goes. `next` are the tiles that it takes after these.
void Runtime::attend_tiles(const AttentionCall& call, const Tiles& tiles, const Tiles* next, AttentionSpace& space) const {
  const int64_t dim = call.kv.value_dim;
  const int64_t count = (tiles.pairs + kTile - 1) / kTile;
  int64_t begin = INT64_MAX, end = 0;
  for (int64_t i = 0; i < count; ++i) {
    Tile& tile = space.tiles[i];
    tile.fill(call, tiles, tiles.first + i * kTile, space.queries(i), kernels_);
    begin = std::min(begin, tile.split_begin);
    end = std::max(end, tile.split_end);
  }
  for (int64_t split = begin; split < end; ++split) {
    SplitCodes codes;
    if (call.kv.coded()) {
      const AttendTask& task = space.tiles[0].task;
      if (split + 1 < end) {
        const Part after(task.block_table, task.kv_head, split + 1, 0, space.tiles[count - 1].highest);
        codes = split_codes(count, split, &after, space);
      } else if (next) {
        const Part after = first_part(call, *next);
        codes = split_codes(count, split, &after, space);
      } else {
        codes = split_codes(count, split, nullptr, space);
      }
    }
    for (int64_t i = 0; i < count; ++i) {
      Tile& tile = space.tiles[i];
      if (split < tile.split_begin || split >= tile.split_end) continue;
      attend(tile, split, codes, space.next, space.partial());
      for (int q = 0; q < tile.task.queries; ++q)
        kernels_.merge_split(tile.states[q], space.sums(i) + q * dim, space.next[q], space.partial() + q * dim, dim);
    }
  }
  for (int64_t i = 0; i < count; ++i) finish(call, space.tiles[i], space.sums(i));
}

// What the first split of these tiles begins with.
Runtime::Part Runtime::first_part(const AttentionCall& call, const Tiles& tiles) const {
  const int64_t row = call.row(tiles, tiles.first), lo = call.lowest(row);
  return {call.table(tiles), tiles.kv_head, lo / kSplit, lo, call.step.positions[row] + 1};
}

void Runtime::attend(const Tile& tile, int64_t split, const SplitCodes& codes, SoftmaxState* states, float* out) const {
  if (tile.task.kv->coded()) kernels_.attend_codes(tile.task, split, codes, states, out);
  else kernels_.attend_split(tile.task, split, states, out);
}

void Runtime::finish(const AttentionCall& call, const Tile& tile, const float* sums) const {
  const int64_t dim = call.kv.value_dim;
  for (int q = 0; q < tile.task.queries; ++q)
    kernels_.finish_row(tile.states[q], sums + q * dim, dim, call.shape.sinks ? &tile.sink[q] : nullptr, tile.out[q]);
}

// Few rows with a long past: the splits are shared out, then merged in ascending order, as one worker would.
void Runtime::attend_by_splits(const AttentionCall& call, const std::vector<Tiles>& work) {
  struct Piece {
    const Tiles* tiles;
    int64_t split;
  };
  const int64_t dim = call.kv.value_dim;
  std::vector<Piece> pieces;
  std::vector<size_t> first_piece;
  Tile& tile = spaces_[0]->tiles[0];
  for (const Tiles& tiles : work) {
    tile.fill(call, tiles, tiles.first, spaces_[0]->queries(0), kernels_);
    first_piece.push_back(pieces.size());
    for (int64_t split = tile.split_begin; split < tile.split_end; ++split) pieces.push_back({&tiles, split});
  }
  first_piece.push_back(pieces.size());
  const size_t piece_floats = static_cast<size_t>(kTile * dim);
  std::vector<SoftmaxState> states(pieces.size() * kTile);
  if (partial_.size() < pieces.size() * piece_floats) partial_.resize(pieces.size() * piece_floats);
  Shares shares(static_cast<int64_t>(pieces.size()), pool_.size());
  pool_.run([&](int worker) {
    AttentionSpace& space = *spaces_[static_cast<size_t>(worker)];
    shares.each(worker, [&](int64_t i) {
      const size_t at = static_cast<size_t>(i);
      const Piece& piece = pieces[at];
      Tile& own = space.tiles[0];
      own.fill(call, *piece.tiles, piece.tiles->first, space.queries(0), kernels_);
      SplitCodes codes;
      if (call.kv.coded()) {
        const Piece& after = pieces[std::min(at + 1, pieces.size() - 1)];
        const int64_t row = call.row(*after.tiles, after.tiles->first);
        const Part next(call.table(*after.tiles), after.tiles->kv_head, after.split, call.lowest(row),
                        call.step.positions[row] + 1);
        codes = split_codes(1, piece.split, &next, space);
      }
      attend(own, piece.split, codes, &states[at * kTile], &partial_[at * piece_floats]);
    });
  });
  float* const sums = spaces_[0]->sums(0);
  for (size_t i = 0; i < work.size(); ++i) {
    tile.fill(call, work[i], work[i].first, spaces_[0]->queries(0), kernels_);
    for (int q = 0; q < tile.task.queries; ++q)
      for (size_t at = first_piece[i]; at < first_piece[i + 1]; ++at)
        kernels_.merge_split(tile.states[q], sums + q * dim, states[at * kTile + static_cast<size_t>(q)],
                             &partial_[at * piece_floats + static_cast<size_t>(q * dim)], dim);
    finish(call, tile, sums);
  }
}

}  // namespace pellucid
