// A persistent pool of worker threads; the caller is worker 0.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace pellucid {

class ThreadPool {
 public:
  using Job = void (*)(void* context, int worker);

  // Throws std::runtime_error where the system has not that many threads.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return size_; }

  // Runs f(worker) on the caller and on every worker that comes before the caller is done; returns when all that came
  // are done. A worker whose core is busy elsewhere is not waited for, so f must share its work by `Shares`, or in
  // another way that needs nobody in particular.
  template <class F>
  void run(F&& f) {
    begin([](void* c, int worker) { (*static_cast<std::remove_reference_t<F>*>(c))(worker); }, &f);
    finish();
  }

  // `run` in two parts: the workers begin beside the caller, and `finish` makes it one of them. One job at a time.
  void begin(Job job, void* context);
  void finish();

 private:
  void stop();
  void work(int worker);
  bool enter(uint32_t epoch);

  const int size_;
  Job job_ = nullptr;
  void* context_ = nullptr;
  // The running job: epoch in the high half; in the low half, kClosed and the number of workers inside.
  alignas(64) std::atomic<uint64_t> state_{0};
  alignas(64) std::atomic<uint32_t> epoch_{0};  // what idle workers sleep on
  alignas(64) std::atomic<uint32_t> left_{0};   // counts the workers that left, for the caller to sleep on
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

// Hands out [0, n): to each worker its own even share, in pieces; whoever is done takes pieces of the others'. So
// workers seldom touch the same counter, a slow core does less, and an absent one nothing.
class Shares {
 public:
  Shares(int64_t n, int workers);
  template <class F>
  void each(int worker, F f) {
    for (int k = 0; k < workers_; ++k) {
      Share& share = shares_[static_cast<size_t>((worker + k) % workers_)];
      for (int64_t begin = share.next.fetch_add(piece_); begin < share.end; begin = share.next.fetch_add(piece_))
        for (int64_t i = begin; i < share.end && i < begin + piece_; ++i) f(i);
    }
  }

 private:
  struct alignas(64) Share {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };
  const int workers_;
  const int64_t piece_;
  std::unique_ptr<Share[]> shares_;
};

}  // namespace pellucid
