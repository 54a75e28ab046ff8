// The passes over a row of logits that sampling needs, one table for each instruction set; all give the same bits.
#pragma once
#include <cstdint>

namespace pellucid {

constexpr int64_t kLogitsBlock = 64;  // logits that share one maximum

inline int64_t logits_blocks(int64_t n) { return (n + kLogitsBlock - 1) / kLogitsBlock; }

// A set of tokens as three arrays, each with room for 16 more: what is past the end may be read and overwritten.
struct TokenSet {
  float* logits;
  float* weights;
  int32_t* ids;
};

// A set of tokens cut in three by two logits; the weight of a set is the sum of its tokens' whole weights.
struct Cut {
  uint64_t weight_above;  // of the tokens above `high`
  int64_t count_above;
  uint64_t weight_between;  // of those from `low` to `high`
  int64_t count_between;
};

// What entropy needs of a row: the sums of round(2^42 · w) and of w · −e over the tokens, w = e^e. The second is rounded, in
// one order on every machine.
struct Spread {
  uint64_t weight;
  double moment;
};

struct SamplingKernels {
  // The maximum of each block of x[n], and of all; NaN if any is NaN.
  float (*block_maxima)(const float* x, int64_t n, float* maxima);
  // Weights e^((x − largest) / temperature) of x[n], all ≤ largest, as floats into w (rounded up to whole blocks; not
  // written when null), and their sum as whole numbers. `maxima` may be null.
  uint64_t (*weights)(const float* x, const float* maxima, int64_t n, float largest, float temperature, float* w);
  // The spread of the weights e^((x − largest) / temperature) of x[n].
  Spread (*spread)(const float* x, const float* maxima, int64_t n, float largest, float temperature);
  // Sum of the whole weights of the tokens with x ≥ low, and their number in `count`.
  uint64_t (*weight_from)(const float* x, const float* w, int64_t n, float low, int64_t* count);
  // Cuts the tokens and writes those between to `out`, in their order; ids null: a token's id is its place.
  Cut (*cut)(const float* x, const float* w, const int32_t* ids, int64_t n, float low, float high, TokenSet out);
  // How many of x[n] are above `value`.
  int64_t (*count_above)(const float* x, const float* maxima, int64_t n, float value);
  // Writes the ids of the logits ≥ low, ascending, up to `room` of them; −1 if there are more.
  int64_t (*ids_from)(const float* x, const float* maxima, int64_t n, float low, int32_t* ids, int64_t room);
};

}  // namespace pellucid
