#include "thread_pool.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <system_error>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace pellucid {

namespace {

// About thirty microseconds: longer than the gap between two operations, far shorter than a time slice.
constexpr int kSpins = 1000;

constexpr uint64_t kClosed = uint64_t{1} << 31;
constexpr uint64_t kInside = kClosed - 1;

inline void pause() {
#ifdef __x86_64__
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

// Waits until the value differs from `old`: first spinning, then asleep.
template <class T>
void wait_change(std::atomic<T>& value, T old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause();
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(int threads) : size_(threads < 1 ? 1 : threads) {
  try {
    for (int i = 1; i < size_; ++i) workers_.emplace_back([this, i] { work(i); });
  } catch (const std::system_error&) {
    const size_t started = workers_.size() + 1;
    stop();
    throw std::runtime_error("the system gave " + std::to_string(started) + " of " + std::to_string(size_) +
                             " threads: ask for fewer");
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  stop_.store(true);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (std::thread& t : workers_) t.join();
}

void ThreadPool::begin(Job job, void* context) {
  job_ = job;
  context_ = context;
  if (size_ == 1) return;
  const uint32_t epoch = epoch_.load(std::memory_order_relaxed) + 1;
  state_.store(static_cast<uint64_t>(epoch) << 32, std::memory_order_release);
  epoch_.store(epoch, std::memory_order_release);
  epoch_.notify_all();
}

void ThreadPool::finish() {
  job_(context_, 0);
  if (size_ == 1) return;
  uint32_t left = left_.load(std::memory_order_acquire);
  uint64_t state = state_.fetch_or(kClosed, std::memory_order_acq_rel);
  while ((state & kInside) != 0) {
    wait_change(left_, left);
    left = left_.load(std::memory_order_acquire);
    state = state_.load(std::memory_order_acquire);
  }
}

// Joins the job of `epoch` unless it is over.
bool ThreadPool::enter(uint32_t epoch) {
  uint64_t state = state_.load(std::memory_order_acquire);
  while ((state >> 32) == epoch && !(state & kClosed))
    if (state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel)) return true;
  return false;
}

void ThreadPool::work(int worker) {
  uint32_t seen = 0;
  for (;;) {
    wait_change(epoch_, seen);
    seen = epoch_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    if (!enter(seen)) continue;
    job_(context_, worker);
    state_.fetch_sub(1, std::memory_order_acq_rel);
    left_.fetch_add(1, std::memory_order_acq_rel);
    left_.notify_one();
  }
}

Shares::Shares(int64_t n, int workers)
    : workers_(workers), piece_(std::max<int64_t>(1, n / (workers * 16))), shares_(new Share[static_cast<size_t>(workers)]) {
  for (int w = 0; w < workers; ++w) {
    shares_[static_cast<size_t>(w)].next.store(n * w / workers, std::memory_order_relaxed);
    shares_[static_cast<size_t>(w)].end = n * (w + 1) / workers;
  }
}

}  // namespace pellucid
