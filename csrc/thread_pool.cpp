#include "thread_pool.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace pellucid {

namespace {

// About thirty microseconds: longer than the gap between two operations, far shorter than a time slice.
constexpr int kSpins = 1000;

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
  for (int i = 1; i < size_; ++i) workers_.emplace_back([this, i] { work(i); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (std::thread& t : workers_) t.join();
}

void ThreadPool::start(Job job, void* context) {
  if (size_ == 1) return job(context, 0);
  job_ = job;
  context_ = context;
  pending_.store(size_ - 1, std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  job(context, 0);
  for (int left = pending_.load(std::memory_order_acquire); left != 0; left = pending_.load(std::memory_order_acquire))
    wait_change(pending_, left);
}

void ThreadPool::work(int worker) {
  uint32_t seen = 0;
  for (;;) {
    wait_change(epoch_, seen);
    ++seen;
    if (stop_.load()) return;
    job_(context_, worker);
    if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) pending_.notify_one();
  }
}

void ThreadPool::barrier() {
  if (size_ == 1) return;
  const uint32_t epoch = barrier_epoch_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    barrier_epoch_.fetch_add(1, std::memory_order_release);
    barrier_epoch_.notify_all();
  } else {
    wait_change(barrier_epoch_, epoch);
  }
}

}  // namespace pellucid
