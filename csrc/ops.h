// The operations of a decoder on the compiled kernels: who computes which panel or row, never how.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "arena.h"
#include "isa.h"
#include "kernel_table.h"
#include "packed_matrix.h"
#include "thread_pool.h"

namespace pellucid {

// Rows of float32 numbers; `stride` in numbers.
struct Rows {
  float* data;
  int64_t count;
  int64_t width;
  int64_t stride;
  float* row(int64_t i) const { return data + i * stride; }
};

struct Norm {
  const float* weight;  // nullptr: the rows are taken as they are
  float eps;
};

// The rows of one step and where their sequences lie in the cache; see forward_batch.py.
struct StepView {
  const int32_t* positions;
  const int64_t* slots;
  const int32_t* query_start_loc;
  const int32_t* block_table;
  int64_t rows;
  int64_t sequences;
  int64_t max_blocks;
};

struct AttentionShape {
  int64_t heads;
  int64_t window;  // 0: everything before
  float scale;
  bool causal = true;              // false: a row sees its whole sequence, all of whose rows are in the step
  float cap = 0.0f;                // 0: none; scores ← cap · tanh(score / cap)
  const float* sinks = nullptr;    // [heads] a learned score each, of a position without a value
  const float* slopes = nullptr;   // [heads] added to a score for each position it lies further ahead (ALiBi)
};

// Consecutive rows of one precision.
struct Run {
  int64_t begin;
  int64_t end;
  bool fast;
};
using Runs = std::vector<Run>;

class Runtime {
 public:
  Runtime(int threads, const std::string& isa);

  const char* isa() const { return kernels_.name; }
  int threads() const { return pool_.size(); }
  size_t weight_bytes() const { return arena_.allocated(); }

  std::unique_ptr<PackedMatrix> pack(const std::vector<SegmentSource>& sources, int64_t columns);

  void embed(const PackedMatrix& table, const int32_t* ids, float scale, Rows out);
  void rms_norm(Rows x, Norm norm, Rows out);
  void rms_norm_add(Rows x, Norm norm, Rows residual);
  void layer_norm(Rows x, const float* weight, const float* bias, float eps, Rows out);
  // out = activation(x), or activation(gate) · up with x = [gate, up].
  void activate(Rows x, Activation activation, bool gated, Rows out);
  // out = W · norm(x) + bias, or residual += W · x, + bias, or out = activation(gate) · up with W = [gate; up]. `runs` covers the rows;
  // without runs all are exact.
  void linear(Rows x, Norm norm, const PackedMatrix& w, const float* bias, Rows out, const Runs& runs);
  void linear_add(Rows x, const PackedMatrix& w, const float* bias, Rows residual, const Runs& runs);
  void linear_gated(Rows x, Norm norm, const PackedMatrix& w, Activation activation, Rows out, const Runs& runs);
  // Normalises and rotates q and k in place and stores k and v; nonfinite[row] is set where a stored number is not finite.
  void rotate_and_store(Rows qkv, const AttentionShape& shape, Norm q_norm, Norm k_norm, const float* cosine,
                        const float* sine, int64_t half_dim, const StepView& step, const KVView& kv, bool* nonfinite);
  void attention(Rows qkv, const AttentionShape& shape, const StepView& step, const KVView& kv, Rows out);

 private:
  struct Tiles;
  struct Tile;
  struct AttentionCall;
  struct Part;
  struct AttentionSpace;
  void attend_tiles(const AttentionCall& call, const Tiles& tiles, const Tiles* next, AttentionSpace& space) const;
  void attend_by_splits(const AttentionCall& call, const std::vector<Tiles>& work);
  SplitCodes split_codes(int64_t count, int64_t split, const Part* next, AttentionSpace& space) const;
  static std::vector<Tiles> share_out(const AttentionCall& call, int64_t most);
  Part first_part(const AttentionCall& call, const Tiles& tiles) const;
  void attend(const Tile& tile, int64_t split, const SplitCodes& codes, SoftmaxState* states, float* out) const;
  void finish(const AttentionCall& call, const Tile& tile, const float* sums) const;

  template <class F>
  void each_row(int64_t count, F f);

  enum class Epilogue { Store, Add, Gate };
  struct Product;
  struct Prepared;
  void products(const Product& call, const Runs& runs);
  void product(const Product& call);
  void few_rows(const Product& call);
  void many_rows(const Product& call, int64_t block);
  Prepared prepared(const Product& call, size_t copies, int64_t rows);
  void prepare_row(const Product& call, const Prepared& to, int64_t row, int64_t at) const;
  void finish_panel(const Product& call, const Prepared& rows, int64_t panel, int64_t begin, int64_t count) const;
  void multiply(const Product& call, const Prepared& rows, int64_t panel, int64_t begin, int64_t at, int count,
                float* out) const;

  const KernelTable& kernels_;
  ThreadPool pool_;
  Arena arena_;
  std::mutex mutex_;  // one operation at a time
  std::vector<uint8_t> prepared_;
  std::vector<float> normalized_;
  std::vector<uint8_t> scratch_;
  std::vector<float> partial_;
  std::vector<std::shared_ptr<AttentionSpace>> spaces_;  // one a worker
};

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

}  // namespace pellucid
