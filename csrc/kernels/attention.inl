// Attention over a paged cache, one arithmetic for any number of rows (law 1).
//
// The past is split at absolute multiples of kSplit positions. In a split: scores = scale · Σ_d q[d] · k[d] with d
// ascending, their maximum, p = e^(score − max), Σ p in sixteen lanes by position, Σ p · v with positions ascending.
// Splits are merged in ascending order. Rows are taken together only to share the loads of keys and values.

namespace {

using pellucid::AttendTask;
using pellucid::kMaxAttentionQueries;
using pellucid::kSplit;
using pellucid::SoftmaxState;

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
  const int64_t dim = task.kv.head_dim;
  const T* values = static_cast<const T*>(task.kv.values);
  V16 acc[NQ][NV];
  for (int i = 0; i < NQ; ++i)
    for (int j = 0; j < NV; ++j) acc[i][j] = vset1(0.0f);
  const int32_t* table = task.block_table + split_start / 16;
  const auto rows_of = [&](int64_t b) { return values + task.kv.at(table[b], task.kv_head) + column; };
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
  const int64_t dim = task.kv.head_dim, start = split * kSplit;
  const int n = task.queries;
  alignas(64) float scores[kMaxAttentionQueries][kSplit];
  int64_t first[kMaxAttentionQueries], last[kMaxAttentionQueries];  // visible positions, relative to the split
  int64_t lo = kSplit, hi = 0;
  for (int i = 0; i < n; ++i) {
    first[i] = task.lo[i] > start ? task.lo[i] - start : 0;
    last[i] = task.hi[i] - start < kSplit ? task.hi[i] - start : kSplit;
    if (last[i] <= first[i]) first[i] = kSplit, last[i] = 0;  // nothing: drops out of every minimum and maximum
    else lo = first[i] < lo ? first[i] : lo, hi = last[i] > hi ? last[i] : hi;
  }
  const V16 scale = vset1(task.scale);
  const T* keys = static_cast<const T*>(task.kv.keys);
  const T* values = static_cast<const T*>(task.kv.values);
  const int64_t block0 = lo / 16, block1 = (hi + 15) / 16;
  for (int64_t b = block0; b < block1; ++b) {
    const int64_t block = task.block_table[start / 16 + b];
    float* row[kMaxAttentionQueries];
    for (int i = 0; i < n; ++i) row[i] = scores[i] + 16 * b;
    const auto block_keys = [&](int64_t of) { return keys + task.kv.at(of, task.kv_head); };
    // Blocks lie anywhere: the processor can not guess the next one, so it is asked for by name.
    const T* next = b + 1 < block1 ? block_keys(task.block_table[start / 16 + b + 1])
                                   : values + task.kv.at(task.block_table[start / 16 + block0], task.kv_head);
    block_scores_any(block_keys(block), next, dim, task.q, n, scale, row);
  }
  const float* p[kMaxAttentionQueries];
  float* o[kMaxAttentionQueries];
  for (int i = 0; i < n; ++i) {
    p[i] = scores[i];
    o[i] = out + i * dim;
    float* s = scores[i];
    states[i] = {0.0f, 0.0f};
    if (last[i] == 0) {  // its weights must read as zero beside those of other rows
      for (int64_t t = 16 * block0; t < 16 * block1; ++t) s[t] = 0.0f;
      continue;
    }
    for (int64_t t = 16 * block0; t < first[i]; ++t) s[t] = -INFINITY;
    for (int64_t t = last[i]; t < 16 * block1; ++t) s[t] = -INFINITY;
    V16 top = vset1(-INFINITY);
    for (int64_t b = block0; b < block1; ++b) top = vmax(top, vload(s + 16 * b));
    const float m = reduce_max(top);
    V16 sum = vset1(0.0f);
    for (int64_t b = block0; b < block1; ++b) {
      const V16 e = vexp(vsub(vload(s + 16 * b), vset1(m)));
      vstore(s + 16 * b, e);
      sum = vadd(sum, e);
    }
    states[i] = {m, reduce_add(sum)};
  }
  int64_t column = 0;
  for (; column + 64 <= dim; column += 64) weighted_values_any<T, 4>(task, start, first, last, column, p, o);
  for (; column < dim; column += 16) weighted_values_any<T, 1>(task, start, first, last, column, p, o);
}

void attend_split(const AttendTask& task, int64_t split, SoftmaxState* states, float* out) {
  if (task.kv.half) attend_split_as<uint16_t>(task, split, states, out);
  else attend_split_as<float>(task, split, states, out);
}

void merge_split(SoftmaxState& state, float* acc, const SoftmaxState& next, const float* next_acc, int64_t dim) {
  if (next.sum == 0.0f) return;
  if (state.sum == 0.0f) {
    state = next;
    std::memcpy(acc, next_acc, static_cast<size_t>(dim) * 4);
    return;
  }
  const float m = state.max > next.max ? state.max : next.max;
  const float a = exp1(state.max - m), b = exp1(next.max - m);
  state = {m, std::fma(state.sum, a, next.sum * b)};
  const V16 va = vset1(a), vb = vset1(b);
  for (int64_t d = 0; d < dim; d += 16) vstore(acc + d, vfma(vload(acc + d), va, vmul(vload(next_acc + d), vb)));
}

void finish_row(const SoftmaxState& state, const float* acc, int64_t dim, float* out) {
  const V16 inverse = vset1(state.sum == 0.0f ? 0.0f : 1.0f / state.sum);
  for (int64_t d = 0; d < dim; d += 16) vstore(out + d, vmul(vload(acc + d), inverse));
}

}  // namespace
