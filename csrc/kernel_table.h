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

// What a number of the cache is: floats, or integer codes with a float32 scale per token and head.
enum class KVType : int { Float32, Float16, Int16, Int8, Int4 };

constexpr int64_t kBlockTokens = 16;
constexpr int64_t kFactorGroup = 16;  // int4: numbers that share a factor

// Keys and values of one layer, in blocks; what belongs to a block starts `block_stride` bytes after the one before.
// Floats: keys [heads, dim, 16], values [heads, 16, value_dim].
// int16, int8: keys [heads, dim / 2, 16, 2], values [heads, 8, value_dim, 2]: two of a head's numbers, or two tokens, side by side.
// int4: keys [heads, dim / 2, 16] with two of a head's numbers in a byte; values [heads, 16, value_dim / 2], see unpack_values.
struct KVView {
  KVType type;
  uint8_t* keys;
  uint8_t* values;
  float* scales;     // codes: [heads, 2 (keys, values), 16]
  uint8_t* factors;  // int4: [heads, (dim + value_dim) / 16, 16], what a code is worth in units of its scale
  int64_t heads;
  int64_t head_dim;
  int64_t value_dim;
  int64_t block_stride;
  int64_t key_bytes;  // of one head in a block
  int64_t value_bytes;
  bool coded() const { return type >= KVType::Int16; }
  uint8_t* key(int64_t block, int64_t head) const { return keys + block * block_stride + head * key_bytes; }
  uint8_t* value(int64_t block, int64_t head) const { return values + block * block_stride + head * value_bytes; }
  float* key_scales(int64_t block, int64_t head) const {
    return reinterpret_cast<float*>(reinterpret_cast<uint8_t*>(scales) + block * block_stride) + head * 2 * kBlockTokens;
  }
  float* value_scales(int64_t block, int64_t head) const { return key_scales(block, head) + kBlockTokens; }
  uint8_t* key_factors(int64_t block, int64_t head) const {
    return factors + block * block_stride + head * ((head_dim + value_dim) / kFactorGroup) * kBlockTokens;
  }
  uint8_t* value_factors(int64_t block, int64_t head) const { return key_factors(block, head) + head_dim; }
};

constexpr int kMaxAttentionQueries = 12;
constexpr int64_t kMaxHeadDim = 576;
constexpr int64_t kSplit = 256;  // positions per split of the past; a constant of the arithmetic (law 1)
constexpr int64_t kSplitBlocks = kSplit / kBlockTokens;

// What may be done to a score s besides scaling, all in units of log2 e: s ← cap · tanh(s / cap), then
// s ← s + slope · (position − own position).
struct ScoreRule {
  float cap;     // 0: none
  bool slopes;
};

// Up to kMaxAttentionQueries (row, query head) pairs of one sequence that share one KV head.
struct AttendTask {
  const KVView* kv;
  const int32_t* block_table;
  int64_t kv_head;
  int queries;
  const float* const* q;    // [queries] pointers to [head_dim]
  const int64_t* lo;        // [queries] first visible position
  const int64_t* hi;        // [queries] one past the last visible position
  const int64_t* own;       // [queries] their own positions
  const float* slope;       // [queries], if the rule has slopes
  float scale;              // attention scale · log2 e
  ScoreRule rule;
  // Codes only: the queries as pack_queries made them.
  const int16_t* q_codes;   // [head_dim / 2, queries, 2]
  const float* q_scales;    // [queries]
};

// One split's keys and values, a pointer for each of its blocks: int16 codes, or int8 and int4 as they are stored, which
// are then widened in registers.
struct SplitCodes {
  KVType type;
  const uint8_t* keys[kSplitBlocks];
  const uint8_t* values[kSplitBlocks];
  const float* key_scales[kSplitBlocks];
  const float* value_scales[kSplitBlocks];
  const uint8_t* key_factors[kSplitBlocks];  // int4
  const uint8_t* value_factors[kSplitBlocks];
  const uint8_t* ahead[kSplitBlocks];  // keys that will be looked at next, to be asked for meanwhile
};

// Codes are widened in registers for so many queries and value_dim a multiple of kWidenDim; more share a widened copy.
constexpr int kWidenQueries = 4;
constexpr int64_t kWidenDim = 64;

// Softmax state of one query over the positions seen so far; powers of 2, not of e.
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
  // int8 and int4 → int16 codes of one head of a block.
  void (*unpack_keys)(const KVView& kv, int64_t block, int64_t head, int16_t* out);
  void (*unpack_values)(const KVView& kv, int64_t block, int64_t head, int16_t* out);
  // Codes and scales of a task's queries: writes q_codes and q_scales.
  void (*pack_queries)(const AttendTask& task, int16_t* codes, float* scales);
  // Softmax and value sums of one split [split · kSplit, …): writes states[queries] and out[queries][value_dim].
  void (*attend_split)(const AttendTask& task, int64_t split, SoftmaxState* states, float* out);
  void (*attend_codes)(const AttendTask& task, int64_t split, const SplitCodes& codes, SoftmaxState* states, float* out);
  // (state, acc) ← (state, acc) merged with the next split's.
  void (*merge_split)(SoftmaxState& state, float* acc, const SoftmaxState& next, const float* next_acc, int64_t dim);
  // `sink`: nullptr, or the head's learned score (times log2 e) of a position without a value.
  void (*finish_row)(const SoftmaxState& state, const float* acc, int64_t dim, const float* sink, float* out);
  void (*decode_row)(const Format& format, const uint8_t* panel, int64_t columns, int row, float scale, float* out);
  SamplingKernels sampling;
};

extern const KernelTable kGenericKernels;
#ifdef PELLUCID_X86
extern const KernelTable kAvx2Kernels;
#ifdef PELLUCID_HAS_AVXVNNI
extern const KernelTable kAvxVnniKernels;
#endif
extern const KernelTable kAvx512VnniKernels;
// Products on tiles; all else is as in kAvx512VnniKernels (isa.cpp puts the two together).
extern const Products kAmxEmulatedExact, kAmxEmulatedFast;
#ifdef PELLUCID_AMX
extern const Products kAmxExact, kAmxFast;
#endif
#endif

}  // namespace pellucid
