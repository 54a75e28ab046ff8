// A persistent pool of worker threads; the caller is worker 0.
#pragma once
#include <atomic>
#include <thread>
#include <vector>

namespace pellucid {

class ThreadPool {
 public:
  using Job = void (*)(void* context, int worker);

  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return size_; }

  // Runs f(worker) on every worker and returns when all are done.
  template <class F>
  void run(F&& f) {
    start([](void* c, int worker) { (*static_cast<std::remove_reference_t<F>*>(c))(worker); }, &f);
  }
  // All workers of the running job wait for each other.
  void barrier();

 private:
  void start(Job job, void* context);
  void work(int worker);

  const int size_;
  Job job_ = nullptr;
  void* context_ = nullptr;
  alignas(64) std::atomic<uint32_t> epoch_{0};
  alignas(64) std::atomic<int> pending_{0};
  alignas(64) std::atomic<int> arrived_{0};
  std::atomic<uint32_t> barrier_epoch_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

}  // namespace pellucid
