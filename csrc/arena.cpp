#include "arena.h"

#include <sys/mman.h>

#include <new>

namespace pellucid {

namespace {
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kChunk = size_t{64} << 20;

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }
}  // namespace

Arena::~Arena() {
  for (const Chunk& c : chunks_) munmap(c.mapping, c.mapping_size);
}

uint8_t* Arena::allocate(size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  bytes = round_up(bytes == 0 ? 1 : bytes, 64);
  if (chunks_.empty() || chunks_.back().size - used_ < bytes) {
    // Untouched pages cost nothing, so a chunk may be larger than what comes to lie in it.
    const size_t size = round_up(bytes > kChunk ? bytes : kChunk, kHugePage);
    void* mapping = mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) throw std::bad_alloc();
    uint8_t* base = reinterpret_cast<uint8_t*>(round_up(reinterpret_cast<uintptr_t>(mapping), kHugePage));
#ifdef MADV_HUGEPAGE
    madvise(base, size, MADV_HUGEPAGE);
#endif
    chunks_.push_back({base, size, mapping, size + kHugePage});
    used_ = 0;
  }
  uint8_t* piece = chunks_.back().base + used_;
  used_ += bytes;
  allocated_ += bytes;
  return piece;
}

}  // namespace pellucid
