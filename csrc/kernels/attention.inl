// Attention over a paged cache, one arithmetic for any number of rows (law 1).
//
// The past is split at absolute multiples of kSplit positions. In a split: scores = scale · Σ_d q[d] · k[d] with d
// ascending, their maximum, p = 2^(score − max), Σ p in sixteen lanes by position, Σ p · v with positions ascending.
// (The scale holds log2 e.) Splits are merged in ascending order. Rows are taken together only to share the loads of keys
// and values. This file has what all number types share and the float types; attention_codes.inl has the integer codes.

namespace {

using pellucid::AttendTask;
using pellucid::kMaxAttentionQueries;
using pellucid::kSplit;
using pellucid::SoftmaxState;

inline bool has_rule(const pellucid::ScoreRule& rule) { return rule.cap > 0.0f || rule.slopes; }

// Applies cap and slope to scores [t0, t1) of the split, in place; `factor` makes them scaled scores first.
inline void apply_rule(const AttendTask& task, int row, int64_t start, float factor, int64_t t0, int64_t t1, float* s) {
  const V16 f = vset1(factor), one = vset1(1.0f), two = vset1(2.0f);
  const V16 inverse = vset1(task.rule.cap > 0.0f ? 2.88539008f / task.rule.cap : 0.0f);  // 2 log2 e / cap
  static const float kIota[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  for (int64_t t = t0; t < t1; t += 16) {
    V16 x = vmul(vload(s + t), f);
    if (task.rule.cap > 0.0f) {  // tanh(y) = 1 − 2 / (1 + e^(2y)); beyond 2y = 40 it is 1 in float32
      const V16 y2 = vmin(vmul(x, inverse), vset1(40.0f));
      x = vmul(vsub(one, vdiv(two, vadd(one, vexp2(y2)))), vset1(task.rule.cap));
    }
    if (task.rule.slopes) {
      const V16 distance = vadd(vload(kIota), vset1(static_cast<float>(start + t - task.own[row])));
      x = vfma(distance, vset1(task.slope[row]), x);
    }
    vstore(s + t, x);
  }
}

// Lanes [from, to) of x, zero elsewhere.
inline V16 keep_lanes(V16 x, int64_t from, int64_t to) {
  float f[16];
  vstore(f, x);
  for (int64_t k = 0; k < 16; ++k)
    if (k < from || k >= to) f[k] = 0.0f;
  return vload(f);
}

// What each row sees of a split, relative to its start. A row that sees nothing has last = 0 < first.
struct Visible {
  int64_t first[kMaxAttentionQueries], last[kMaxAttentionQueries];
  int64_t lo = kSplit, hi = 0;
  Visible(const AttendTask& task, int64_t start) {
    for (int i = 0; i < task.queries; ++i) {
      first[i] = task.lo[i] > start ? task.lo[i] - start : 0;
      last[i] = task.hi[i] - start < kSplit ? task.hi[i] - start : kSplit;
      if (last[i] <= first[i]) first[i] = kSplit, last[i] = 0;  // drops out of every minimum and maximum
      else lo = first[i] < lo ? first[i] : lo, hi = last[i] > hi ? last[i] : hi;
    }
    if (hi == 0) lo = 0;
  }
};

template <class T>
inline V16 load_kv(const T* p) {
  if constexpr (sizeof(T) == 2) return vload_half(reinterpret_cast<const uint16_t*>(p));
  else return vload(reinterpret_cast<const float*>(p));
}

// scores[q][16] of one block of 16 keys, stored [dim][16]; `next` is what will be read after it.
template <class T, int NQ>
inline void block_scores(const T* keys, const T* next, int64_t dim, const float* const* q, V16 scale,
                         float* const* scores) {
  V16 acc[NQ];
  for (int i = 0; i < NQ; ++i) acc[i] = vset1(0.0f);
  for (int64_t d = 0; d < dim; ++d) {
    prefetch(next + 16 * d);
    const V16 k = load_kv(keys + 16 * d);
    for (int i = 0; i < NQ; ++i) acc[i] = vfma(k, vset1(q[i][d]), acc[i]);
  }
  for (int i = 0; i < NQ; ++i) vstore(scores[i], vmul(acc[i], scale));
}

template <class T>
inline void block_scores_any(const T* keys, const T* next, int64_t dim, const float* const* q, int n, V16 scale, float* const* s) {
  int i = 0;
  if constexpr (kMaxQueries >= 12)
    for (; n - i >= 12; i += 12) block_scores<T, 12>(keys, next, dim, q + i, scale, s + i);
  for (; n - i >= 4; i += 4) block_scores<T, 4>(keys, next, dim, q + i, scale, s + i);
  if (n - i == 3) block_scores<T, 3>(keys, next, dim, q + i, scale, s + i);
  if (n - i == 2) block_scores<T, 2>(keys, next, dim, q + i, scale, s + i);
  if (n - i == 1) block_scores<T, 1>(keys, next, dim, q + i, scale, s + i);
}

// out[q][NV·16 columns] = Σ_t p[q][t] · v[t], t ascending over [t0, t1) of the split.
template <class T, int NQ, int NV>
inline void weighted_values(const AttendTask& task, int64_t split_start, int64_t t0, int64_t t1, int64_t column,
                            const float* const* p, float* const* out) {
  const int64_t dim = task.kv->value_dim;
  V16 acc[NQ][NV];
  for (int i = 0; i < NQ; ++i)
    for (int j = 0; j < NV; ++j) acc[i][j] = vset1(0.0f);
  const int32_t* table = task.block_table + split_start / 16;
  const auto rows_of = [&](int64_t b) { return reinterpret_cast<const T*>(task.kv->value(table[b], task.kv_head)) + column; };
  for (int64_t t = t0; t < t1;) {
    const int64_t b = t / 16, end = 16 * (b + 1) < t1 ? 16 * (b + 1) : t1;
    const T* v = rows_of(b) + (t % 16) * dim;
    const T* next = 16 * (b + 1) < t1 ? rows_of(b + 1) + (t % 16) * dim : v;
    for (; t < end; ++t, v += dim, next += dim) {
      for (int j = 0; j < NV * 16; j += 64 / sizeof(T)) prefetch(next + j);
      V16 row[NV];
      for (int j = 0; j < NV; ++j) row[j] = load_kv(v + 16 * j);
      for (int i = 0; i < NQ; ++i) {
        const V16 weight = vset1(p[i][t]);
        for (int j = 0; j < NV; ++j) acc[i][j] = vfma(weight, row[j], acc[i][j]);
      }
    }
  }
  for (int i = 0; i < NQ; ++i)
    for (int j = 0; j < NV; ++j) vstore(out[i] + column + 16 * j, acc[i][j]);
}

template <class T, int NV>
inline void weighted_values_any(const AttendTask& task, int64_t start, const int64_t* first, const int64_t* last,
                                int64_t column, const float* const* p, float* const* out) {
  constexpr int kTile = kMaxQueries >= 12 ? 4 : 2;
  int i = 0;
  const auto bounds = [&](int n, int64_t& t0, int64_t& t1) {
    t0 = first[i];
    t1 = last[i];
    for (int k = 1; k < n; ++k) {
      t0 = first[i + k] < t0 ? first[i + k] : t0;
      t1 = last[i + k] > t1 ? last[i + k] : t1;
    }
  };
  int64_t t0, t1;
  for (; task.queries - i >= kTile; i += kTile) {
    bounds(kTile, t0, t1);
    weighted_values<T, kTile, NV>(task, start, t0, t1, column, p + i, out + i);
  }
  for (; task.queries - i >= 1; i += 1) {
    bounds(1, t0, t1);
    weighted_values<T, 1, NV>(task, start, t0, t1, column, p + i, out + i);
  }
}

template <class T>
void attend_split_as(const AttendTask& task, int64_t split, SoftmaxState* states, float* out) {
  const int64_t dim = task.kv->head_dim, value_dim = task.kv->value_dim, start = split * kSplit;
  const int n = task.queries;
  alignas(64) float scores[kMaxAttentionQueries][kSplit];
  const Visible seen(task, start);
  const int64_t *first = seen.first, *last = seen.last;
  const V16 scale = vset1(task.scale);
  const int64_t block0 = seen.lo / 16, block1 = (seen.hi + 15) / 16;
  for (int64_t b = block0; b < block1; ++b) {
    float* row[kMaxAttentionQueries];
    for (int i = 0; i < n; ++i) row[i] = scores[i] + 16 * b;
    const int32_t* table = task.block_table + start / 16;
    const auto block_keys = [&](int64_t of) { return reinterpret_cast<const T*>(task.kv->key(table[of], task.kv_head)); };
    // Blocks lie anywhere: the processor can not guess the next one, so it is asked for by name.
    const T* next = b + 1 < block1 ? block_keys(b + 1) : block_keys(b);
    block_scores_any(block_keys(b), next, dim, task.q, n, scale, row);
  }
  const float* p[kMaxAttentionQueries];
  float* o[kMaxAttentionQueries];
  for (int i = 0; i < n; ++i) {
    p[i] = scores[i];
    o[i] = out + i * value_dim;
    float* s = scores[i];
    states[i] = {0.0f, 0.0f};
    if (last[i] == 0) {  // its weights must read as zero beside those of other rows
      for (int64_t t = 16 * block0; t < 16 * block1; ++t) s[t] = 0.0f;
      continue;
    }
    if (has_rule(task.rule)) apply_rule(task, i, start, 1.0f, 16 * block0, 16 * block1, s);
    for (int64_t t = 16 * block0; t < first[i]; ++t) s[t] = -INFINITY;
    for (int64_t t = last[i]; t < 16 * block1; ++t) s[t] = -INFINITY;
    V16 top = vset1(-INFINITY);
    for (int64_t b = block0; b < block1; ++b) top = vmax(top, vload(s + 16 * b));
    const float m = reduce_max(top);
    V16 sum = vset1(0.0f);
    for (int64_t b = block0; b < block1; ++b) {
      V16 e = vexp2(vsub(vload(s + 16 * b), vset1(m)));
      if (first[i] > 16 * b || last[i] < 16 * b + 16) e = keep_lanes(e, first[i] - 16 * b, last[i] - 16 * b);
      vstore(s + 16 * b, e);
      sum = vadd(sum, e);
    }
    states[i] = {m, reduce_add(sum)};
  }
  int64_t column = 0;
  for (; column + 64 <= value_dim; column += 64) weighted_values_any<T, 4>(task, start, first, last, column, p, o);
  for (; column < value_dim; column += 16) weighted_values_any<T, 1>(task, start, first, last, column, p, o);
}

void attend_split(const AttendTask& task, int64_t split, SoftmaxState* states, float* out) {
  if (task.kv->type == KVType::Float16) attend_split_as<uint16_t>(task, split, states, out);
  else attend_split_as<float>(task, split, states, out);
}

void merge_split(SoftmaxState& state, float* acc, const SoftmaxState& next, const float* next_acc, int64_t dim) {
  if (next.sum == 0.0f) return;
  if (state.sum == 0.0f) {
    state = next;
    std::memcpy(acc, next_acc, static_cast<size_t>(dim) * 4);
    return;
  }
  // One of the two factors is 2^0.
  const bool higher = state.max > next.max;
  const float m = higher ? state.max : next.max, less = exp2_1((higher ? next.max : state.max) - m);
  const float a = higher ? 1.0f : less, b = higher ? less : 1.0f;
  state = {m, std::fma(state.sum, a, next.sum * b)};
  const V16 va = vset1(a), vb = vset1(b);
  for (int64_t d = 0; d < dim; d += 16) vstore(acc + d, vfma(vload(acc + d), va, vmul(vload(next_acc + d), vb)));
}

void finish_row(const SoftmaxState& state, const float* acc, int64_t dim, const float* sink, float* out) {
  float factor = state.sum == 0.0f ? 0.0f : 1.0f / state.sum;
  if (sink && state.sum != 0.0f) {  // one more summand that brings no value
    const float m = state.max > *sink ? state.max : *sink;
    const float seen = exp2_1(state.max - m);
    factor = seen / std::fma(state.sum, seen, exp2_1(*sink - m));
  }
  const V16 f = vset1(factor);
  for (int64_t d = 0; d < dim; d += 16) vstore(out + d, vmul(vload(acc + d), f));
}

}  // namespace
