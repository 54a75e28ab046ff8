// Attention over keys and values kept as integer codes: products of 16-bit numbers, summed exactly in 32 bits.
//
// A split (attention.inl) here: scores = scale_q · scale_k · Σ code_q · code_k, their maximum, p = 2^(score − max), Σ p in
// sixteen lanes by position. The weights p · scale_v become 16-bit codes on a scale that lets the whole split's sum of
// weight · value stay within 32 bits, so that sum is exact as well. Exact sums have no order: rows and positions are
// taken together as suits the registers.

namespace {

using pellucid::kSplitBlocks;
using pellucid::SplitCodes;

constexpr float kWeightMax = 32767.0f;
constexpr float kWeightSum = 261888.0f;  // (+ 128 of rounding) · kValueLimit < 2^31

void pack_queries(const AttendTask& task, int16_t* codes, float* scales) {
  const int64_t dim = task.kv->head_dim, n = task.queries;
  int16_t row[kMaxHeadDim];
  float mixed[kMaxHeadDim];
  const bool mix = turned(task.kv->type);
  for (int64_t i = 0; i < n; ++i) {
    if (mix) turn(task.q[i], dim, mixed);
    const auto keep = [&](int64_t d, I16 c) { istore_narrow(row + d, c); };
    scales[i] = code_head(mix ? mixed : task.q[i], dim, kCodeMax, kCodeLength, keep);
    if (mix) scales[i] /= static_cast<float>(turn_block(dim));
    for (int64_t p = 0; p < dim / 2; ++p) std::memcpy(codes + 2 * (p * n + i), row + 2 * p, 4);
  }
}

// Bytes of two numbers of 16 keys, or of 16 numbers of two tokens' values.
template <KVType T>
constexpr int64_t kPairBytes = T == KVType::Int16 ? 64 : T == KVType::Int8 ? 32 : 16;

// Two numbers of 16 keys; of int4 without its factor.
template <KVType T>
inline I16 load_key_pairs(const uint8_t* p) {
  if constexpr (T == KVType::Int16) return iload(p);
  if constexpr (T == KVType::Int8) return iload_bytes(p);
  return iload_nibbles(p);
}

// scores[q][16 · b …] = scale_k · Σ code_q · code_k for NB blocks from b on. Meanwhile their values are asked for.
template <KVType T, int NQ, int NB>
PELLUCID_INLINE void code_scores(const SplitCodes& codes, int64_t b, int64_t dim, const int16_t* q, int64_t stride,
                                 float* scores) {
  // The factor of 16 numbers of an int4 key goes to their sum.
  constexpr bool kFactors = T == KVType::Int4;
  constexpr int64_t kStep = kFactors ? kFactorGroup / 2 : 1;
  I16 acc[NQ][NB];
  for (int i = 0; i < NQ; ++i)
    for (int j = 0; j < NB; ++j) acc[i][j] = iset1(0);
  for (int64_t p = 0; p < dim / 2; p += kStep) {
    I16 part[NQ][NB];
    for (int i = 0; i < NQ; ++i)
      for (int j = 0; j < NB; ++j) part[i][j] = kFactors ? iset1(0) : acc[i][j];
    for (int64_t s = p; s < p + kStep; ++s, q += stride) {
      I16 k[NB];
      for (int j = 0; j < NB; ++j) {
        prefetch_far(codes.values[b + j] + kPairBytes<T> * s);
        k[j] = load_key_pairs<T>(codes.keys[b + j] + kPairBytes<T> * s);
      }
      for (int i = 0; i < NQ; ++i) {
        const I16 x = ispread(q + 2 * i);
        for (int j = 0; j < NB; ++j) part[i][j] = idot_pairs(part[i][j], k[j], x);
      }
    }
    for (int j = 0; j < NB; ++j) {
      const I16 factor = kFactors ? iload_lanes(codes.key_factors[b + j] + 2 * p) : iset1(0);
      for (int i = 0; i < NQ; ++i) acc[i][j] = kFactors ? iadd(acc[i][j], imul(part[i][j], factor)) : part[i][j];
    }
  }
  for (int j = 0; j < NB; ++j) {
    const V16 scale = vload(codes.key_scales[b + j]);
    for (int i = 0; i < NQ; ++i) vstore(scores + i * kSplit + 16 * (b + j), vmul(vfromint(acc[i][j]), scale));
  }
}

template <KVType T, int NQ, int NB>
inline void code_scores_all(const SplitCodes& codes, int64_t b0, int64_t b1, int64_t dim, const int16_t* q, int64_t stride,
                            float* scores) {
  int64_t b = b0;
  for (; b + NB <= b1; b += NB) code_scores<T, NQ, NB>(codes, b, dim, q, stride, scores);
  if constexpr (NB > 4)
    for (; b + 4 <= b1; b += 4) code_scores<T, NQ, 4>(codes, b, dim, q, stride, scores);
  for (; b < b1; ++b) code_scores<T, NQ, 1>(codes, b, dim, q, stride, scores);
}

template <KVType T>
inline void code_scores_any(const AttendTask& task, const SplitCodes& codes, int64_t b0, int64_t b1, float* scores) {
  const int64_t dim = task.kv->head_dim, stride = 2 * task.queries;
  int i = 0;
  const auto at = [&](auto rows, auto blocks) {
    constexpr int kRows = decltype(rows)::value, kBlocks = decltype(blocks)::value;
    for (; task.queries - i >= kRows; i += kRows)
      code_scores_all<T, kRows, kBlocks>(codes, b0, b1, dim, task.q_codes + 2 * i, stride, scores + i * kSplit);
  };
  using std::integral_constant;
  if constexpr (kMaxQueries >= 12 && T == KVType::Int16) {
    at(integral_constant<int, 12>{}, integral_constant<int, 2>{});
    at(integral_constant<int, 6>{}, integral_constant<int, 4>{});
    at(integral_constant<int, 4>{}, integral_constant<int, 4>{});
    at(integral_constant<int, 3>{}, integral_constant<int, 8>{});
    at(integral_constant<int, 2>{}, integral_constant<int, 8>{});
    at(integral_constant<int, 1>{}, integral_constant<int, 8>{});
  } else if constexpr (kMaxQueries >= 12) {
    at(integral_constant<int, 4>{}, integral_constant<int, 2>{});
    at(integral_constant<int, 3>{}, integral_constant<int, 4>{});
    at(integral_constant<int, 2>{}, integral_constant<int, 4>{});
    at(integral_constant<int, 1>{}, integral_constant<int, 4>{});
  } else {
    at(integral_constant<int, 4>{}, integral_constant<int, 1>{});
    at(integral_constant<int, 2>{}, integral_constant<int, 2>{});
    at(integral_constant<int, 1>{}, integral_constant<int, 4>{});
  }
}

// One row on its way from scores to weight codes. All rows take a step before the next one, so that nobody waits long for
// the sums across lanes.
struct CodedRow {
  float* s;
  int64_t first, last;  // what it sees, relative to the split
  int64_t b0, b1;       // in blocks
  V16 sum, weight_sum, weight_top;
  float factor;

  // Masks and scales; the largest score.
  float top(const AttendTask& task, int row, int64_t start) {
    factor = task.q_scales[row] * task.scale;
    if (has_rule(task.rule)) {
      apply_rule(task, row, start, factor, 16 * b0, 16 * b1, s);
      factor = 1.0f;
    }
    for (int64_t t = 16 * b0; t < first; ++t) s[t] = -INFINITY;
    for (int64_t t = last; t < 16 * b1; ++t) s[t] = -INFINITY;
    V16 most = vload(s + 16 * b0);
    for (int64_t b = b0 + 1; b < b1; ++b) most = vmax(most, vload(s + 16 * b));
    return reduce_max(most) * factor;
  }

  // Scores → p · scale_v.
  void weigh(const SplitCodes& codes, float max) {
    const V16 f = vset1(factor), shift = vset1(-max);
    sum = weight_sum = weight_top = vset1(0.0f);
    for (int64_t b = b0; b < b1; ++b) {
      V16 e = vexp2(vfma(vload(s + 16 * b), f, shift));
      V16 scale = vload(codes.value_scales[b]);
      const int64_t from = first - 16 * b, to = last - 16 * b;
      if (from > 0 || to < 16) {  // what is not seen weighs nothing, whatever lies there
        e = keep_lanes(e, from, to);
        scale = keep_lanes(scale, from, to);
      }
      const V16 w = vmul(e, scale);
      sum = vadd(sum, e);
      weight_sum = vadd(weight_sum, w);
      weight_top = vmax(weight_top, w);
      vstore(s + 16 * b, w);
    }
  }

  // p · scale_v → codes; returns what one unit of them is worth.
  float encode(int16_t* weights) const {
    const float total = reduce_add(weight_sum), most = reduce_max(weight_top);
    float unit = 0.0f;
    if (most > 1e-30f) {
      const float by_sum = kWeightSum / total, by_one = kWeightMax / most;
      unit = by_sum < by_one ? by_sum : by_one;
    }
    const V16 u = vset1(unit);
    for (int64_t b = b0; b < b1; ++b) istore_narrow(weights + 16 * b, iround(vmul(vload(s + 16 * b), u)));
    return unit > 0.0f ? 1.0f / unit : 0.0f;
  }
};

// Values of tokens 2p and 2p + 1 of a block, NV · 16 of their numbers; `factors` [NV, 16 tokens], of int4.
template <KVType T, int NV>
inline void load_value_pairs(const uint8_t* v, int64_t dim, const int16_t* factors, I16 (&row)[NV]) {
  if constexpr (T == KVType::Int4) {
    for (int j = 0; j < NV; j += 2) {
      iload_nibble_rows(v + 8 * j, v + dim / 2 + 8 * j, row[j], row[j + 1]);
      row[j] = imul_pairs(row[j], ispread(factors + 16 * j));
      row[j + 1] = imul_pairs(row[j + 1], ispread(factors + 16 * j + 16));
    }
  } else {
    for (int j = 0; j < NV; ++j) row[j] = T == KVType::Int16 ? iload(v + 64 * j) : iload_bytes(v + 32 * j);
  }
}

// out[q][NV · 16 columns] = worth[q] · Σ_t weight[q][t] · value[t]; NT pairs of tokens have sums of their own. Meanwhile the
// next keys are asked for.
template <KVType T, int NQ, int NV, int NT>
PELLUCID_INLINE void code_values(const SplitCodes& codes, int64_t b0, int64_t b1, int64_t dim, int64_t column,
                                 const int16_t* weights, const float* worth, float* out) {
  constexpr int64_t kBytes = kPairBytes<T>;
  const int64_t offset = column * kBytes / 16, step = dim * kBytes / 16;  // to the columns, to the next pair of tokens
  I16 acc[NT][NQ][NV];
  for (int u = 0; u < NT; ++u)
    for (int i = 0; i < NQ; ++i)
      for (int j = 0; j < NV; ++j) acc[u][i][j] = iset1(0);
  for (int64_t b = b0; b < b1; ++b) {
    const uint8_t* v = codes.values[b] + (T == KVType::Int4 ? offset / 2 : offset);
    const uint8_t* next = codes.ahead[b] + offset;
    const int16_t* w = weights + 16 * b;
    int16_t factors[NV * 16];
    if constexpr (T == KVType::Int4)
      for (int j = 0; j < NV; ++j) istore_narrow(factors + 16 * j, iload_lanes(codes.value_factors[b] + column + 16 * j));
    for (int p = 0; p < 8 / NT; ++p, w += 2 * NT, v += NT * step, next += NT * step)
      for (int u = 0; u < NT; ++u) {
        I16 row[NV];
        for (int64_t line = 0; line < NV * kBytes; line += 64) prefetch_far(next + u * step + line);
        load_value_pairs<T, NV>(v + u * step, dim, factors + 2 * (p * NT + u), row);
        for (int i = 0; i < NQ; ++i) {
          const I16 x = ispread(w + i * kSplit + 2 * u);
          for (int j = 0; j < NV; ++j) acc[u][i][j] = idot_pairs(acc[u][i][j], row[j], x);
        }
      }
  }
  for (int i = 0; i < NQ; ++i)
    for (int j = 0; j < NV; ++j) {
      for (int u = 1; u < NT; ++u) acc[0][i][j] = iadd(acc[0][i][j], acc[u][i][j]);
      vstore(out + i * dim + column + 16 * j, vmul(vfromint(acc[0][i][j]), vset1(worth[i])));
    }
}

template <KVType T, int NV>
inline void code_values_any(int queries, const SplitCodes& codes, int64_t b0, int64_t b1, int64_t dim, int64_t column,
                            const int16_t* weights, const float* worth, float* out) {
  int i = 0;
  const auto at = [&](auto rows, auto chains) {
    constexpr int kRows = decltype(rows)::value, kChains = decltype(chains)::value;
    for (; queries - i >= kRows; i += kRows)
      code_values<T, kRows, NV, kChains>(codes, b0, b1, dim, column, weights + i * kSplit, worth + i, out + i * dim);
  };
  using std::integral_constant;
  if constexpr (kMaxQueries >= 12) {
    if constexpr (T == KVType::Int16) at(integral_constant<int, 6>{}, integral_constant<int, 1>{});
    if constexpr (T != KVType::Int16) at(integral_constant<int, 4>{}, integral_constant<int, 1>{});
    at(integral_constant<int, 3>{}, integral_constant<int, 2>{});
    at(integral_constant<int, 1>{}, integral_constant<int, 4>{});
  } else {
    at(integral_constant<int, 2>{}, integral_constant<int, 1>{});
    at(integral_constant<int, 1>{}, integral_constant<int, 2>{});
  }
}

template <KVType T>
void attend_codes_as(const AttendTask& task, int64_t split, const SplitCodes& codes, SoftmaxState* states, float* out) {
  const int64_t dim = task.kv->value_dim, start = split * kSplit;
  alignas(64) float scores[kMaxAttentionQueries * kSplit];
  alignas(64) int16_t weights[kMaxAttentionQueries * kSplit];
  const Visible seen(task, start);
  const int64_t b0 = seen.lo / 16, b1 = (seen.hi + 15) / 16;
  code_scores_any<T>(task, codes, b0, b1, scores);
  float worth[kMaxAttentionQueries];
  CodedRow rows[kMaxAttentionQueries];
  for (int i = 0; i < task.queries; ++i) {
    const int64_t first = seen.first[i], last = seen.last[i];
    CodedRow& row = rows[i];
    row.s = scores + i * kSplit;
    row.first = first, row.last = last;
    row.b0 = first / 16, row.b1 = (last + 15) / 16;
    states[i] = {last > 0 ? row.top(task, i, start) : 0.0f, 0.0f};
  }
  for (int i = 0; i < task.queries; ++i)
    if (rows[i].last > 0) rows[i].weigh(codes, states[i].max);
  for (int i = 0; i < task.queries; ++i) {
    const CodedRow& row = rows[i];
    int16_t* w = weights + i * kSplit;
    worth[i] = 0.0f;
    if (row.last > 0) {
      std::memset(w + 16 * b0, 0, static_cast<size_t>(row.b0 - b0) * 32);
      worth[i] = row.encode(w);
      std::memset(w + 16 * row.b1, 0, static_cast<size_t>(b1 - row.b1) * 32);
      // A query that is not finite has a NaN scale: its sum says so.
      states[i].sum = task.q_scales[i] == task.q_scales[i] ? reduce_add(row.sum) : task.q_scales[i];
    } else {
      std::memset(w + 16 * b0, 0, static_cast<size_t>(b1 - b0) * 32);
    }
  }
  constexpr int kWide = kMaxQueries >= 12 ? 4 : 2;
  int64_t column = 0;
  for (; column + 16 * kWide <= dim; column += 16 * kWide)
    code_values_any<T, kWide>(task.queries, codes, b0, b1, dim, column, weights, worth, out);
  if constexpr (T == KVType::Int16)
    for (; column < dim; column += 16) code_values_any<T, 1>(task.queries, codes, b0, b1, dim, column, weights, worth, out);
}

void attend_codes(const AttendTask& task, int64_t split, const SplitCodes& codes, SoftmaxState* states, float* out) {
  switch (codes.type) {
    case KVType::Int8: return attend_codes_as<KVType::Int8>(task, split, codes, states, out);
    case KVType::Int4: return attend_codes_as<KVType::Int4>(task, split, codes, states, out);
    default: return attend_codes_as<KVType::Int16>(task, split, codes, states, out);
  }
}

}  // namespace
