// From a row of logits to a token, and to logprobs, in a few passes and without sorting the vocabulary.
//
// The definition is src/pellucid/sampling/candidates.py. Candidates are ordered by logit, highest first, ties by id. A
// token's weight is a whole number, round(2^42 · e^((logit − largest) / temperature)): sums of weights are exact, so that
// they may be taken in any order, and the first candidates that reach a sum can be looked for in any way.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "kernel_table.h"
#include "thread_pool.h"

namespace pellucid {

constexpr int64_t kMaxVocabulary = int64_t{1} << 21;  // sums of so many weights fit 64 bits

struct Filters {
  double temperature;  // > 0
  double log_min_p;    // −∞: off
  int64_t top_k;       // 0: off
  double top_p;        // in (0, 1]
  uint64_t draw;       // the draw times 2^53
};

struct Drawn {
  int64_t id;     // −1 where `largest` is not finite
  float largest;  // the largest logit; NaN if any is NaN
};

struct Ranking {
  float largest;
  uint64_t total;  // sum of the weights at temperature 1
  int64_t rank;    // of the token asked about, from 1
  std::vector<int32_t> top;
};

// What a trace tells of a row, as the temperature has it.
struct Survey {
  float largest = 0.0f;  // not finite: the rest is not set
  int64_t possible = 0;  // tokens whose logit is above −∞
  int64_t rank = 0;      // of the token asked about, from 1
  Spread raw{0, 0.0};    // at temperature 1
  Spread spread{0, 0.0};
  std::vector<int32_t> ids;     // the first candidates
  std::vector<float> logits;
  std::vector<uint64_t> ends;   // the weight of the first i + 1 of them
};

class RowSampler {
 public:
  explicit RowSampler(const std::string& isa);

  // The token that the filters leave and the draw takes; logits[n], n ≤ kMaxVocabulary.
  Drawn draw(const float* logits, int64_t n, const Filters& filters);
  // The first candidate.
  Drawn first(const float* logits, int64_t n);
  // What logprobs need: `total` is 0 where `largest` is not finite.
  Ranking rank(const float* logits, int64_t n, int64_t token, int64_t num_top);
  // The first `num_top` candidates, and what is known of all.
  Survey survey(const float* logits, int64_t n, int64_t token, float temperature, int64_t num_top);
  // Half of a survey, which another sampler may complete at the same time: what is known of the row as it is, or, with
  // `drawn`, as the temperature has it. At temperature 1 the second leaves out `spread`, which is `raw`.
  void survey_half(bool drawn, const float* logits, int64_t n, int64_t token, float temperature, int64_t num_top, Survey& out);

 private:
  // The end of a run of first candidates.
  struct End {
    int64_t id;
    uint64_t weight;  // of all candidates up to it
  };
  enum class Measure { Weight, Count };

  // Some of the row's tokens, in id order, with the weight and the number of those before the first candidate of them.
  struct Span {
    const float* logits;
    const float* weights;
    const int32_t* ids;  // null: all tokens
    int64_t count;
    uint64_t weight_before;
    int64_t count_before;
  };

  float scan(const float* logits, int64_t n);
  void survey_row(int64_t token, Survey& out);
  void survey_drawn(float temperature, int64_t num_top, Survey& out);
  int64_t rank_of(const float* logits, int64_t n, int64_t token) const;
  void find_first(int64_t count);
  void make_head(int64_t size);
  void sort_first(int64_t count);
  void take_keys();
  void weigh_head(float temperature);
  End end_of(uint64_t target);
  End find(Measure measure, uint64_t target);
  void choose_cut(bool by_weight, const Span& span, double share, float* low, float* high);
  End end_of_ties(bool by_weight, uint64_t target, const Span& span) const;
  End end_of_few(bool by_weight, uint64_t target, const Span& span);

  const SamplingKernels& kernels_;
  std::mutex mutex_;
  const float* logits_ = nullptr;
  int64_t n_ = 0;
  float largest_ = 0.0f;
  uint64_t total_ = 0;
  std::vector<float> maxima_;   // of the row's blocks
  std::vector<float> group_maxima_;
  std::vector<float> weights_;  // of the row's tokens
  // The most probable tokens in candidate order: `head_ends_[i]` is the weight of the first i + 1. All logits from
  // `head_low_` on are in it, and all that are possible where `head_is_all_`.
  std::vector<int32_t> head_ids_;
  std::vector<float> head_logits_, head_weights_;
  std::vector<uint64_t> head_ends_;
  float head_low_ = 0.0f;
  bool head_is_all_ = false;
  // Tokens near the one looked for.
  std::vector<float> near_logits_, near_weights_;
  std::vector<int32_t> near_ids_;
  std::vector<uint64_t> keys_;
};

// Several rows side by side on threads of their own, each as RowSampler takes it. The threads are started when they are
// first needed, and sleep between two calls.
class RowsSampler {
 public:
  using Work = std::function<void(RowSampler&, int64_t)>;

  RowsSampler(const std::string& isa, int threads);

  // work(sampler, i) for each i below `count`.
  void each(int64_t count, Work work) {
    begin(count, std::move(work));
    end();
  }
  // The same in two parts: the threads begin beside the caller, who at `end` does what is left and waits for them. What
  // began before is ended first.
  void begin(int64_t count, Work work);
  void end();

 private:
  void finish();

  std::mutex mutex_;
  std::vector<std::unique_ptr<RowSampler>> samplers_;
  Work work_;  // none: nothing runs
  std::optional<Shares> shares_;
  std::unique_ptr<ThreadPool> pool_;
};

}  // namespace pellucid
