// What a step's operations share: its arrays, and the cache of a layer.
#pragma once
#include <algorithm>

#include "arrays.h"

namespace pellucid {

// One step's arrays, held together so that a layer passes one object instead of six arrays.
struct Step {
  Ints1 positions;
  Longs1 slots;
  Ints1 query_start_loc;
  Ints2 block_table;
  Bools1 nonfinite;
  Runs runs;  // empty: every row is exact
  int64_t blocks_needed = 0;

  Step(Ints1 p, Longs1 s, Ints1 q, Ints2 b, Bools1 n, const std::optional<Bools1>& fast)
      : positions(p), slots(s), query_start_loc(q), block_table(b), nonfinite(n) {
    const size_t t = positions.shape(0), count = query_start_loc.shape(0);
    check(slots.shape(0) == t && nonfinite.shape(0) == t, "positions, slot_mapping and nonfinite must have one entry per row");
    check(count >= 1 && block_table.shape(0) == count - 1, "block_table must have one row per sequence");
    check(query_start_loc.data()[0] == 0 && query_start_loc.data()[count - 1] == static_cast<int32_t>(t),
          "query_start_loc must run from 0 to the number of rows");
    for (size_t i = 0; i + 1 < count; ++i) {
      const int32_t begin = query_start_loc.data()[i], end = query_start_loc.data()[i + 1];
      check(begin <= end && end <= static_cast<int32_t>(t), "query_start_loc must ascend");
      for (int32_t r = begin; r < end; ++r) {
        const int64_t blocks = positions.data()[r] / 16 + 1;
        check(positions.data()[r] >= 0 && blocks <= static_cast<int64_t>(block_table.shape(1)),
              "a position lies outside its block table");
        check(r == begin || positions.data()[r] == positions.data()[r - 1] + 1, "rows of a sequence must be consecutive");
        for (int64_t b = r == begin ? 0 : blocks - 1; b < blocks; ++b) {
          const int64_t block = block_table.data()[i * block_table.shape(1) + static_cast<size_t>(b)];
          check(block >= 0, "block numbers must not be negative");
          blocks_needed = std::max<int64_t>(blocks_needed, block + 1);
        }
        const int64_t slot = slots.data()[r];
        check(slot >= 0, "slots must not be negative");
        blocks_needed = std::max<int64_t>(blocks_needed, slot / 16 + 1);
      }
    }
    if (fast) split(*fast);
  }
  // The arrays of another step with as many rows; operations that are run again then mean that one.
  void renew(Ints1 p, Longs1 s, Ints1 q, Ints2 b, const std::optional<Bools1>& fast) {
    check(p.shape(0) == positions.shape(0), "a step can be renewed for as many rows only");
    std::fill_n(nonfinite.data(), nonfinite.shape(0), false);
    *this = Step(p, s, q, b, nonfinite, fast);
  }
  void split(const Bools1& fast) {
    const int64_t count = static_cast<int64_t>(positions.shape(0));
    check(static_cast<int64_t>(fast.shape(0)) == count, "fast_rows must have one entry per row");
    for (int64_t i = 0; i < count; ++i) {
      if (runs.empty() || runs.back().fast != fast.data()[i]) runs.push_back({i, i, fast.data()[i]});
      runs.back().end = i + 1;
    }
  }
  StepView view() const {
    return {positions.data(), slots.data(), query_start_loc.data(), block_table.data(),
            static_cast<int64_t>(positions.shape(0)), static_cast<int64_t>(block_table.shape(0)),
            static_cast<int64_t>(block_table.shape(1))};
  }
};

using Array = nb::ndarray<nb::device::cpu>;

inline int64_t size(const Array& a, size_t axis) { return static_cast<int64_t>(a.shape(axis)); }

// Keys and values of one layer, as kv_cache/storage.py lays them out.
struct LayerCache {
  Array keys, values, scales, factors;
  KVView view{};
  int64_t blocks;

  // Scales and factors are empty where the type has none.
  LayerCache(Array k, Array v, Array s, Array f) : keys(k), values(v), scales(s), factors(f) {
    check(k.ndim() >= 4 && v.ndim() >= 4, "keys and values must have at least 4 dimensions");
    check(k.dtype() == v.dtype(), "keys and values must have one type");
    const nb::dlpack::dtype half{static_cast<uint8_t>(nb::dlpack::dtype_code::Float), 16, 1};
    view.type = k.dtype() == half                 ? KVType::Float16
                : k.dtype() == nb::dtype<float>() ? KVType::Float32
                : k.dtype() == nb::dtype<int16_t>() ? KVType::Int16
                : k.dtype() == nb::dtype<int8_t>()  ? KVType::Int8
                                                    : KVType::Int4;
    const bool pairs = view.type == KVType::Int16 || view.type == KVType::Int8, nibbles = view.type == KVType::Int4;
    check(!nibbles || k.dtype() == nb::dtype<uint8_t>(), "the KV cache must be float32, float16, int16, int8 or uint8 (int4)");
    check(k.ndim() == (pairs ? 5 : 4) && v.ndim() == k.ndim(), "keys and values must have 4 dimensions, 5 for int16 and int8");
    blocks = size(k, 0);
    view.heads = size(k, 1);
    view.head_dim = size(k, 2) * (pairs || nibbles ? 2 : 1);
    view.value_dim = nibbles ? 2 * size(v, 3) : size(v, 3);
    check(size(v, 0) == blocks && size(v, 1) == view.heads, "keys and values must have the same blocks and heads");
    check(size(k, 3) == kBlockTokens && size(v, 2) == kBlockTokens / (pairs ? 2 : 1), "block_size must be 16");
    check(!pairs || (size(k, 4) == 2 && size(v, 4) == 2), "int16 and int8 lie in pairs");
    for (const int64_t dim : {view.head_dim, view.value_dim})
      check(dim > 0 && dim % 16 == 0 && dim <= kMaxHeadDim, "head_dim must be a multiple of 16, at most 576");
    check(blocks <= 1 || k.stride(0) == v.stride(0), "keys and values must have one block stride");
    const int64_t item = static_cast<int64_t>(k.itemsize());
    view.block_stride = k.stride(0) * item;
    view.keys = static_cast<uint8_t*>(k.data());
    view.values = static_cast<uint8_t*>(v.data());
    view.key_bytes = contiguous_head(k) * item;
    view.value_bytes = contiguous_head(v) * item;
    check(view.coded() == (s.size() > 0 || blocks == 0) && nibbles == (f.size() > 0 || (nibbles && blocks == 0)),
          "integers have scales, int4 has factors, floats have neither");
    if (view.coded()) {
      check(s.dtype() == nb::dtype<float>() && s.ndim() == 4 && size(s, 0) == blocks && size(s, 1) == view.heads &&
                size(s, 2) == 2 && size(s, 3) == kBlockTokens && contiguous_head(s) == 2 * kBlockTokens &&
                (blocks <= 1 || s.stride(0) * 4 == view.block_stride),
            "scales must be float32 [blocks, heads, 2, 16] with the block stride of the keys");
      view.scales = static_cast<float*>(s.data());
    }
    if (nibbles) {
      const int64_t groups = (view.head_dim + view.value_dim) / kFactorGroup;
      check(f.dtype() == nb::dtype<uint8_t>() && f.ndim() == 4 && size(f, 0) == blocks && size(f, 1) == view.heads &&
                size(f, 2) == groups && size(f, 3) == kBlockTokens && contiguous_head(f) == groups * kBlockTokens &&
                (blocks <= 1 || f.stride(0) == view.block_stride),
            "factors must be uint8 [blocks, heads, (dim + value_dim) / 16, 16] with the block stride of the keys");
      view.factors = static_cast<uint8_t*>(f.data());
    }
  }

  // Numbers of one head of a block; a block must be one piece.
  static int64_t contiguous_head(const Array& a) {
    int64_t expected = 1;
    for (size_t axis = a.ndim() - 1; axis > 1; --axis) {
      check(a.stride(axis) == expected || a.shape(axis) == 1, "what belongs to a block must be contiguous");
      expected *= size(a, axis);
    }
    check((a.stride(1) == expected || a.shape(1) == 1) && (a.shape(0) == 1 || a.stride(0) >= expected * size(a, 1)),
          "what belongs to a block must be contiguous");
    return expected;
  }
};

}  // namespace pellucid
