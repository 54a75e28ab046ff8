#include "sampling.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "isa.h"

namespace pellucid {

namespace {

constexpr float kLowest = std::numeric_limits<float>::lowest();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kSortAll = 1024;    // a row of so many logits is simply sorted
constexpr int64_t kHeadSize = 256;    // about so many of the most probable tokens are looked at first
constexpr int64_t kHeadRoom = 4096;   // more than so many, tied, are no head
constexpr int64_t kMaxHeadTopK = 1024;
constexpr int64_t kSortFew = 512;
constexpr int64_t kSample = 512;

// round(2^42 · w), ties to even; the same numbers as WeightSum's.
uint64_t whole(float w) {
  const double magic = 0x1.8p52;
  const double rounded = static_cast<double>(w) * 0x1p42 + magic;
  uint64_t bits, base;
  std::memcpy(&bits, &rounded, sizeof bits);
  std::memcpy(&base, &magic, sizeof base);
  return bits - base;
}

// Ascending keys are candidate order; both zeros are one logit.
uint64_t order_key(float logit, int32_t id) {
  const float canonical = logit + 0.0f;
  uint32_t bits;
  std::memcpy(&bits, &canonical, sizeof bits);
  const uint32_t ascending = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(~ascending) << 32 | static_cast<uint32_t>(id);
}

__extension__ typedef unsigned __int128 Wide;

// The smallest whole number ≥ fraction · weight, exactly; fraction in (0, 1).
uint64_t ceil_share(double fraction, uint64_t weight) {
  int exponent;
  const double mantissa = std::frexp(fraction, &exponent);
  const Wide product = static_cast<Wide>(static_cast<uint64_t>(std::ldexp(mantissa, 53))) * weight;
  const int shift = 53 - exponent;
  if (shift >= 120) return 1;
  return static_cast<uint64_t>((product + (static_cast<Wide>(1) << shift) - 1) >> shift);
}

template <class T>
void make_room(std::vector<T>& buffer, int64_t count) {
  if (buffer.size() < static_cast<size_t>(count)) buffer.resize(static_cast<size_t>(count));
}

int64_t padded(int64_t n) { return logits_blocks(n) * kLogitsBlock; }

}  // namespace

RowSampler::RowSampler(const std::string& isa) : kernels_(choose_kernels(isa).sampling) {}

float RowSampler::scan(const float* logits, int64_t n) {
  logits_ = logits;
  n_ = n;
  make_room(maxima_, logits_blocks(n));
  largest_ = kernels_.block_maxima(logits, n, maxima_.data());
  return largest_;
}

Drawn RowSampler::draw(const float* logits, int64_t n, const Filters& filters) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!std::isfinite(scan(logits, n))) return {-1, largest_};
  const float temperature = static_cast<float>(filters.temperature);
  const int64_t top_k = filters.top_k >= n ? 0 : filters.top_k;
  const double cutoff_exact = static_cast<double>(largest_) + filters.temperature * filters.log_min_p;
  const float cutoff = static_cast<float>(std::max(cutoff_exact, static_cast<double>(kLowest)));
  const bool has_cutoff = filters.log_min_p > -std::numeric_limits<double>::infinity();

  make_head(top_k <= kMaxHeadTopK ? std::max(kHeadSize, top_k) : kHeadSize);
  weigh_head(temperature);
  // All filters keep a run of first candidates; the shortest run's weight is all that has to be known of it.
  uint64_t weight = std::numeric_limits<uint64_t>::max();
  const int64_t head = static_cast<int64_t>(head_ids_.size());
  if (head_is_all_) weight = head_ends_.back();
  if (top_k > 0 && top_k <= head) weight = std::min(weight, head_ends_[static_cast<size_t>(top_k) - 1]);
  if (has_cutoff && head > 0 && cutoff >= head_low_) {
    const auto end = std::partition_point(head_logits_.begin(), head_logits_.begin() + head, [&](float x) { return x >= cutoff; });
    weight = std::min(weight, head_ends_[static_cast<size_t>(end - head_logits_.begin()) - 1]);
  }
  if (weight == std::numeric_limits<uint64_t>::max()) {
    make_room(weights_, padded(n));
    weight = total_ = kernels_.weights(logits, maxima_.data(), n, largest_, temperature, weights_.data());
    int64_t count;
    if (has_cutoff) weight = std::min(weight, kernels_.weight_from(logits, weights_.data(), n, cutoff, &count));
    if (top_k > 0) weight = std::min(weight, find(Measure::Count, static_cast<uint64_t>(top_k)).weight);
  }
  if (filters.top_p < 1.0) weight = end_of(ceil_share(filters.top_p, weight)).weight;
  const uint64_t below = static_cast<uint64_t>((static_cast<Wide>(filters.draw) * weight) >> 53);
  return {end_of(below + 1).id, largest_};
}

Drawn RowSampler::first(const float* logits, int64_t n) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!std::isfinite(scan(logits, n))) return {-1, largest_};
  const auto block = std::find(maxima_.begin(), maxima_.begin() + logits_blocks(n), largest_) - maxima_.begin();
  const float* from = logits + block * kLogitsBlock;
  return {std::find(from, logits + n, largest_) - logits, largest_};
}

RowsSampler::RowsSampler(const std::string& isa, int threads) {
  for (int i = 0; i < std::max(1, threads); ++i) samplers_.push_back(std::make_unique<RowSampler>(isa));
}

void RowsSampler::begin(int64_t count, Work work) {
  const std::lock_guard<std::mutex> lock(mutex_);
  finish();
  if (!pool_) pool_ = std::make_unique<ThreadPool>(static_cast<int>(samplers_.size()));
  work_ = std::move(work);
  shares_.emplace(count, pool_->size());
  pool_->begin(
      [](void* context, int worker) {
        auto& self = *static_cast<RowsSampler*>(context);
        self.shares_->each(worker, [&](int64_t i) { self.work_(*self.samplers_[static_cast<size_t>(worker)], i); });
      },
      this);
}

void RowsSampler::end() {
  const std::lock_guard<std::mutex> lock(mutex_);
  finish();
}

void RowsSampler::finish() {
  if (!work_) return;
  pool_->finish();
  work_ = nullptr;
}

// From 1; ties by id.
int64_t RowSampler::rank_of(const float* logits, int64_t n, int64_t token) const {
  const float value = logits[token];
  int64_t rank = 1 + kernels_.count_above(logits, maxima_.data(), n, value);
  for (int64_t b = 0; b * kLogitsBlock < token; ++b) {
    if (maxima_[static_cast<size_t>(b)] < value) continue;
    const int64_t end = std::min(token, (b + 1) * kLogitsBlock);
    for (int64_t i = b * kLogitsBlock; i < end; ++i) rank += logits[i] == value;
  }
  return rank;
}

// Puts `count` first candidates or more into the head.
void RowSampler::find_first(int64_t count) {
  make_head(count);
  if (static_cast<int64_t>(head_ids_.size()) < count) sort_first(count);
}

Ranking RowSampler::rank(const float* logits, int64_t n, int64_t token, int64_t num_top) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!std::isfinite(scan(logits, n))) return {largest_, 0, 0, {}};
  Ranking ranking{largest_, kernels_.weights(logits, maxima_.data(), n, largest_, 1.0f, nullptr), rank_of(logits, n, token), {}};
  const int64_t count = std::min(num_top, n);
  if (count == 0) return ranking;
  find_first(count);
  ranking.top.assign(head_ids_.begin(), head_ids_.begin() + count);
  return ranking;
}

Survey RowSampler::survey(const float* logits, int64_t n, int64_t token, float temperature, int64_t num_top) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Survey survey;
  survey.largest = scan(logits, n);
  if (!std::isfinite(largest_)) return survey;
  survey_row(token, survey);
  survey_drawn(temperature, num_top, survey);
  if (temperature == 1.0f) survey.spread = survey.raw;
  return survey;
}

void RowSampler::survey_half(bool drawn, const float* logits, int64_t n, int64_t token, float temperature, int64_t num_top,
                             Survey& out) {
  const std::lock_guard<std::mutex> lock(mutex_);
  scan(logits, n);
  if (!drawn) out.largest = largest_;
  if (!std::isfinite(largest_)) return;
  if (drawn) survey_drawn(temperature, num_top, out);
  else survey_row(token, out);
}

void RowSampler::survey_row(int64_t token, Survey& out) {
  out.possible = kernels_.count_above(logits_, maxima_.data(), n_, -kInfinity);
  out.rank = rank_of(logits_, n_, token);
  out.raw = kernels_.spread(logits_, maxima_.data(), n_, largest_, 1.0f);
}

void RowSampler::survey_drawn(float temperature, int64_t num_top, Survey& out) {
  if (temperature != 1.0f) out.spread = kernels_.spread(logits_, maxima_.data(), n_, largest_, temperature);
  const int64_t count = std::min(num_top, n_);
  find_first(count);
  weigh_head(temperature);
  out.ids.assign(head_ids_.begin(), head_ids_.begin() + count);
  out.logits.assign(head_logits_.begin(), head_logits_.begin() + count);
  out.ends.assign(head_ends_.begin(), head_ends_.begin() + count);
}

// The most probable tokens, at least `size` of them or all that are possible; none where that is no small number.
void RowSampler::make_head(int64_t size) {
  head_ids_.clear();
  head_is_all_ = n_ <= kSortAll;
  head_low_ = kLowest;
  if (!head_is_all_) {
    const int64_t blocks = logits_blocks(n_);
    if (blocks < 2 * size) return;
    // The size-th largest of the maxima of groups is a lower bound of the size-th largest logit, and near it.
    const int64_t per_group = std::max<int64_t>(1, blocks / std::max<int64_t>(4 * size, 512));
    group_maxima_.clear();
    for (int64_t b = 0; b < blocks; b += per_group) {
      const auto first = maxima_.begin() + b;
      group_maxima_.push_back(*std::max_element(first, first + std::min(per_group, blocks - b)));
    }
    const auto place = group_maxima_.begin() + size - 1;
    std::nth_element(group_maxima_.begin(), place, group_maxima_.end(), std::greater<float>());
    head_is_all_ = *place < kLowest;
    head_low_ = std::max(*place, kLowest);
  }
  head_ids_.resize(kHeadRoom);
  const int64_t count = kernels_.ids_from(logits_, maxima_.data(), n_, head_low_, head_ids_.data(), kHeadRoom);
  head_ids_.resize(static_cast<size_t>(std::max<int64_t>(count, 0)));
  if (count < 0) head_is_all_ = false;
  keys_.clear();
  for (const int32_t id : head_ids_) keys_.push_back(order_key(logits_[id], id));
  std::sort(keys_.begin(), keys_.end());
  take_keys();
}

// The first `count` candidates by sorting the row.
void RowSampler::sort_first(int64_t count) {
  keys_.clear();
  for (int64_t i = 0; i < n_; ++i) keys_.push_back(order_key(logits_[i], static_cast<int32_t>(i)));
  std::partial_sort(keys_.begin(), keys_.begin() + count, keys_.end());
  keys_.resize(static_cast<size_t>(count));
  take_keys();
}

void RowSampler::take_keys() {
  head_ids_.clear();
  for (const uint64_t key : keys_) head_ids_.push_back(static_cast<int32_t>(key & 0xFFFFFFFFu));
}

void RowSampler::weigh_head(float temperature) {
  const int64_t count = static_cast<int64_t>(head_ids_.size());
  make_room(head_logits_, count);
  make_room(head_weights_, padded(count));
  for (int64_t i = 0; i < count; ++i) head_logits_[static_cast<size_t>(i)] = logits_[head_ids_[static_cast<size_t>(i)]];
  kernels_.weights(head_logits_.data(), nullptr, count, largest_, temperature, head_weights_.data());
  head_ends_.resize(static_cast<size_t>(count));
  uint64_t sum = 0;
  for (size_t i = 0; i < head_ends_.size(); ++i) head_ends_[i] = sum += whole(head_weights_[i]);
}

// The first candidate at which the weight of all candidates up to it reaches the target (at least 1, at most the sum).
RowSampler::End RowSampler::end_of(uint64_t target) {
  if (head_ends_.empty() || head_ends_.back() < target) return find(Measure::Weight, target);
  const auto place = std::lower_bound(head_ends_.begin(), head_ends_.end(), target) - head_ends_.begin();
  return {head_ids_[static_cast<size_t>(place)], head_ends_[static_cast<size_t>(place)]};
}

// As end_of, for weights or for numbers of tokens, in the whole row, whose weights are known. A sample of the tokens tells
// between which two logits the end almost certainly lies; what is between them is sampled again, until it can be sorted.
RowSampler::End RowSampler::find(Measure measure, uint64_t target) {
  make_room(near_logits_, n_ + 16);
  make_room(near_weights_, n_ + 16);
  make_room(near_ids_, n_ + 16);
  const TokenSet near{near_logits_.data(), near_weights_.data(), near_ids_.data()};
  const bool by_weight = measure == Measure::Weight;
  float low = kLowest, high = largest_;
  uint64_t before = 0, inside = by_weight ? total_ : static_cast<uint64_t>(n_);
  if (!head_ids_.empty()) {
    high = std::nextafter(head_low_, -kInfinity);
    before = by_weight ? head_ends_.back() : head_ids_.size();
    inside -= before;
  }
  Span span{logits_, weights_.data(), nullptr, n_, 0, 0};
  for (;;) {
    float lower = low, upper = high;
    const double share = static_cast<double>(target - before) / static_cast<double>(inside);
    choose_cut(by_weight, span, std::min(1.0, share), &lower, &upper);
    Cut cut = kernels_.cut(span.logits, span.weights, span.ids, span.count, lower, upper, near);
    const uint64_t above = by_weight ? span.weight_before + cut.weight_above
                                     : static_cast<uint64_t>(span.count_before + cut.count_above);
    const uint64_t between = by_weight ? cut.weight_between : static_cast<uint64_t>(cut.count_between);
    if (target > above && target - above <= between) {
      cut.weight_above += span.weight_before;
      cut.count_above += span.count_before;
      low = lower;
      high = upper;
    } else {  // the sample misled: the row's tokens on the side where the end must be
      if (target > above && lower <= kLowest) return {-1, total_};  // only impossible tokens are left to count
      if (target > above) high = std::nextafter(lower, -kInfinity);
      else low = std::nextafter(upper, kInfinity);
      cut = kernels_.cut(logits_, weights_.data(), nullptr, n_, low, high, near);
    }
    span = {near.logits, near.weights, near.ids, cut.count_between, cut.weight_above, cut.count_above};
    before = by_weight ? cut.weight_above : static_cast<uint64_t>(cut.count_above);
    inside = by_weight ? cut.weight_between : static_cast<uint64_t>(cut.count_between);
    if (inside < target - before) return {-1, total_};
    if (low == high) return end_of_ties(by_weight, target - before, span);
    if (span.count <= kSortFew) return end_of_few(by_weight, target - before, span);
  }
}

// Narrows [low, high] to logits between which the given share of the span's weight (or number) ends, by a sample.
void RowSampler::choose_cut(bool by_weight, const Span& span, double share, float* low, float* high) {
  keys_.clear();
  uint32_t random = 1;
  const int64_t stride = span.count / kSample;
  double sum = 0.0;
  for (int64_t i = 0; i < kSample && stride > 0; ++i) {
    random = random * 1664525u + 1013904223u;
    const int64_t place = i * stride + static_cast<int64_t>(random >> 8) % stride;
    const float value = span.logits[place];
    if (!(value >= *low && value <= *high)) continue;
    keys_.push_back(order_key(value, static_cast<int32_t>(place)));
    sum += by_weight ? static_cast<double>(span.weights[place]) : 1.0;
  }
  if (keys_.empty()) return;
  std::sort(keys_.begin(), keys_.end());
  const auto logit = [&](size_t i) { return span.logits[keys_[i] & 0xFFFFFFFFu]; };
  size_t middle = 0;
  for (double reached = 0.0; middle < keys_.size(); ++middle) {
    reached += by_weight ? static_cast<double>(span.weights[keys_[middle] & 0xFFFFFFFFu]) : 1.0;
    if (reached >= share * sum) break;
  }
  middle = std::min(middle, keys_.size() - 1);
  const double size = static_cast<double>(keys_.size()), left = static_cast<double>(middle) + 0.5;
  const size_t margin = 2 + static_cast<size_t>(3.0 * std::sqrt(left * (size - left) / size));  // three deviations
  const size_t first = middle > margin ? middle - margin : 0, last = std::min(middle + margin, keys_.size() - 1);
  const float upper = middle > margin ? logit(first) : *high, lower = middle + margin < keys_.size() ? logit(last) : *low;
  if (upper == *high && lower == *low) {  // many ties: the value in the middle alone
    *low = *high = logit(middle);
    return;
  }
  *low = lower;
  *high = upper;
}

// The end among equal logits, by id.
RowSampler::End RowSampler::end_of_ties(bool by_weight, uint64_t target, const Span& span) const {
  const uint64_t each = whole(span.weights[0]);
  const uint64_t number = by_weight ? (target + each - 1) / each : target;
  return {span.ids[number - 1], span.weight_before + number * each};
}

// The end among few tokens, by sorting them.
RowSampler::End RowSampler::end_of_few(bool by_weight, uint64_t target, const Span& span) {
  keys_.clear();
  for (int64_t i = 0; i < span.count; ++i) keys_.push_back(order_key(span.logits[i], static_cast<int32_t>(i)));
  std::sort(keys_.begin(), keys_.end());
  End end{-1, span.weight_before};
  uint64_t reached = 0;
  for (const uint64_t key : keys_) {
    const size_t i = key & 0xFFFFFFFFu;
    end = {span.ids[i], end.weight + whole(span.weights[i])};
    reached += by_weight ? whole(span.weights[i]) : 1;
    if (reached >= target) break;
  }
  return end;
}

}  // namespace pellucid
