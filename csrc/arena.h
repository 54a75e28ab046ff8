// Memory for weights: large anonymous chunks on huge pages, cut into 64-byte aligned pieces, freed together.
#pragma once
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace pellucid {

class Arena {
 public:
  Arena() = default;
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Zeroed memory; throws std::bad_alloc when the system has none.
  uint8_t* allocate(size_t bytes);
  size_t allocated() const { return allocated_; }

 private:
  struct Chunk {
    uint8_t* base;
    size_t size;
    void* mapping;
    size_t mapping_size;
  };
  std::vector<Chunk> chunks_;
  size_t used_ = 0;
  size_t allocated_ = 0;
  std::mutex mutex_;
};

}  // namespace pellucid
