// What one instruction set offers: a table of functions, filled once per translation unit, chosen at run time.
#pragma once
#include <cstddef>
#include <cstdint>

#include "formats.h"
#include "sampling_table.h"

namespace pellucid {

// One row of activations as integers of BYTES bytes with a scale per 32 columns: a ≈ scale · q, |q| ≤ kLimit.
// In memory: codes [BYTES · K bytes], scale [K/32], sum32 [K/32] (int), fsum32 [K/32], sum16 [K/16] (int), fsum16 [K/16];
// the sums are of q over 32 and 16 columns, the fsums are scale · sum.
template <int BYTES>
struct QuantizedRow {
  // 127 · 256 + 127, so that both bytes of 256 · high + low fit into a signed byte; or one signed byte.
  static constexpr int32_t kLimit = BYTES == 2 ? 32639 : 127;
  static size_t bytes(int64_t k) {
    return (static_cast<size_t>(k) * BYTES + static_cast<size_t>(k / 32) * 28 + 63) & ~size_t{63};
  }
  const uint8_t* base;
  size_t groups;  // of 32 columns
  QuantizedRow(const uint8_t* row, int64_t k) : base(row), groups(static_cast<size_t>(k) / 32) {}
  const uint8_t* codes() const { return base; }
  const float* scale() const { return reinterpret_cast<const float*>(base + groups * 32 * BYTES); }
  const int32_t* sum32() const { return reinterpret_cast<const int32_t*>(base + groups * (32 * BYTES + 4)); }
  const float* fsum32() const { return reinterpret_cast<const float*>(base + groups * (32 * BYTES + 8)); }
  const int32_t* sum16() const { return reinterpret_cast<const int32_t*>(base + groups * (32 * BYTES + 12)); }
  const float* fsum16() const { return reinterpret_cast<const float*>(base + groups * (32 * BYTES + 20)); }
};

enum class Activation : int { Silu = 0, GeluTanh = 1, Gelu = 2, Relu = 3, SwigluClamped = 4 };

// Keys and values of one layer, in blocks: keys [blocks, heads, dim, block], values [blocks, heads, block, dim]; a block is
// one piece, and the next one starts `block_stride` numbers later.
struct KVView {
  const void* keys;
  const void* values;
  bool half;
  int64_t heads;
  int64_t head_dim;
  int64_t block_size;
  int64_t block_stride;
  // Where the numbers of one head of a block start.
  int64_t at(int64_t block, int64_t head) const { return block * block_stride + head * head_dim * block_size; }
};

// Up to kMaxAttentionQueries (row, query head) pairs of one sequence that share one KV head.
struct AttendTask {
  KVView kv;
  const int32_t* block_table;
  int64_t kv_head;
  int queries;
  const float* const* q;   // [queries] pointers to [head_dim]
  const int64_t* lo;       // [queries] first visible position
  const int64_t* hi;       // [queries] one past the last visible position
  float scale;
};

constexpr int kMaxAttentionQueries = 16;
constexpr int64_t kMaxHeadDim = 256;
constexpr int64_t kSplit = 256;  // positions per split of the past; a constant of the arithmetic (law 1)

// Softmax state of one query over the positions seen so far.
struct SoftmaxState {
  float max;
  float sum;  // 0: nothing seen
};

// Products of activation rows with weight panels, in one precision.
struct Products {
  // Bytes of a prepared row of k columns, and the row itself from floats.
  size_t (*row_bytes)(int64_t k);
  void (*prepare_row)(const float* x, int64_t k, uint8_t* out);
  // Whether float weights take prepared rows too; else they take the float rows.
  bool prepares_for_floats;
  // out[row][16] for `count` ≤ 64 rows. Tile kernels need `scratch` and read memory up to a multiple of 16 rows.
  void (*panel[kNumFormats])(const uint8_t* panel, int64_t columns, const uint8_t* rows, size_t row_stride, int count,
                             float* out, uint8_t* scratch);
  size_t (*scratch_bytes)(int64_t k);  // nullptr: none
  // Called by every worker before and after its share of a product with kTileRows rows or more; nullptr: no need.
  void (*enter)();
  void (*leave)();
};

constexpr int kTileRows = 5;  // fewer rows than these are cheaper without tiles

struct KernelTable {
  const char* name;
  Products exact, fast;
  void (*rms_norm_row)(const float* x, const float* weight, float eps, int64_t n, float* out);
  void (*rms_norm_add_row)(const float* x, const float* weight, float eps, int64_t n, float* residual);
  void (*layer_norm_row)(const float* x, const float* weight, const float* bias, float eps, int64_t n, float* out);
  void (*gate_row)(const float* gate, const float* up, Activation activation, int64_t n, float* out);
  void (*rotate_row)(float* x, const float* cosine, const float* sine, int64_t half_dim);
  // Stores one head's key and value at (block, offset); returns false if a number is not finite as stored.
  bool (*store_kv)(const KVView& kv, int64_t block, int64_t offset, int64_t head, const float* key, const float* value);
  // Softmax and value sums of one split [split · kSplit, …): writes states[queries] and out[queries][head_dim].
  void (*attend_split)(const AttendTask& task, int64_t split, SoftmaxState* states, float* out);
  // (state, acc) ← (state, acc) merged with the next split's.
  void (*merge_split)(SoftmaxState& state, float* acc, const SoftmaxState& next, const float* next_acc, int64_t dim);
  void (*finish_row)(const SoftmaxState& state, const float* acc, int64_t dim, float* out);
  void (*decode_row)(const Format& format, const uint8_t* panel, int64_t columns, int row, float scale, float* out);
  SamplingKernels sampling;
};

extern const KernelTable kGenericKernels;
#ifdef PELLUCID_X86
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512VnniKernels;
// Products on tiles; all else is as in kAvx512VnniKernels (isa.cpp puts the two together).
extern const Products kAmxEmulatedExact, kAmxEmulatedFast;
#ifdef PELLUCID_AMX
extern const Products kAmxExact, kAmxFast;
#endif
#endif

}  // namespace pellucid
