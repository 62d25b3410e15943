// Arena: recycled memory for ops, reader groups and Vars, by size class.
//
// Data flow: slab -> depot -> magazine -> a thread's BlockCache -> block in use -> the cache of the thread that
// finished with it -> depot. Nothing returns to the system before the engine goes, and a block keeps its class, so
// memory is type-stable: a stale look at a recycled op reads an op.
//
// Threads:   Arena is thread-safe (one mutex, taken once a magazine). A BlockCache belongs to one thread at a time.
// Ownership: caches hold blocks of the arena and give them back with Flush.
// Back-pressure: op blocks that are out of the depot are the credits of the soft bound (backpressure.cc).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "sync.h"
#include "tuning.h"

namespace engine::detail {

struct FreeBlock {
  FreeBlock* next;
  FreeBlock* next_magazine;  // of the first block of a magazine in the depot
};

// Size class c holds blocks of 64*c bytes. Larger ones come from operator new.
inline constexpr uint32_t kClasses = 17;
inline constexpr uint32_t ClassOf(size_t bytes) { return static_cast<uint32_t>((bytes + 63) / 64); }
inline constexpr uint32_t kGroupClass = 1;
inline constexpr uint32_t kFirstOpClass = 2;

class Arena {
 public:
  explicit Arena(size_t max_pending);
  ~Arena();
  Arena(const Arena&) = delete;

  uint32_t magazine() const { return magazine_; }
  // A list of magazine() blocks. Counts as that many pending if `ops`.
  FreeBlock* Take(uint32_t cls) EXCLUDES(mu_);
  void Put(uint32_t cls, FreeBlock* magazine, uint32_t count) EXCLUDES(mu_);

  // Op blocks handed out; what sits in caches is included.
  size_t outstanding() const { return outstanding_.load(std::memory_order_relaxed); }
  void AddLarge(int64_t blocks) { outstanding_.fetch_add(blocks, std::memory_order_relaxed); }

  // Visits every block of the classes [from, kClasses) ever carved. The caller knows which are in use.
  void ForEachBlock(uint32_t from, const std::function<void(void*)>& visit) EXCLUDES(mu_);

  void LockForFork() ACQUIRE(mu_) { mu_.Lock(); }
  void UnlockForFork() RELEASE(mu_) { mu_.Unlock(); }

  uint64_t slab_bytes() const { return slab_bytes_.load(std::memory_order_relaxed); }
  uint64_t slab_allocations() const { return slab_allocations_.load(std::memory_order_relaxed); }

 private:
  struct Slab {
    std::byte* memory;
    uint32_t cls;
    uint32_t blocks;
  };
  FreeBlock* Carve(uint32_t cls) REQUIRES(mu_);

  const uint32_t magazine_;
  Mutex mu_;
  std::array<FreeBlock*, kClasses> depot_ GUARDED_BY(mu_){};  // whole magazines, linked by next_magazine
  std::array<FreeBlock*, kClasses> loose_ GUARDED_BY(mu_){};  // blocks of broken magazines
  std::array<uint32_t, kClasses> loose_count_ GUARDED_BY(mu_){};
  std::array<Slab, kClasses> open_ GUARDED_BY(mu_){};          // slab being carved; blocks = carved so far
  std::vector<Slab> slabs_ GUARDED_BY(mu_);
  // relaxed: a soft bound and statistics; the mutex orders the blocks themselves.
  std::atomic<size_t> outstanding_{0};
  std::atomic<uint64_t> slab_bytes_{0};
  std::atomic<uint64_t> slab_allocations_{0};
};

// Two magazines a class, so that a thread at the edge of one does not go to the depot for each op.
class BlockCache {
 public:
  explicit BlockCache(Arena& arena) : arena_(arena) {}

  void* Get(uint32_t cls) {
    Loaded& l = loaded_[cls];
    if (!l.list) [[unlikely]] Refill(cls);
    FreeBlock* block = l.list;
    l.list = block->next;
    --l.count;
    return block;
  }
  void Return(uint32_t cls, void* memory) {
    Loaded& l = loaded_[cls];
    if (l.count >= arena_.magazine()) [[unlikely]] MakeRoom(cls);
    auto* block = static_cast<FreeBlock*>(memory);
    block->next = l.list;
    l.list = block;
    ++l.count;
  }
  bool Empty(uint32_t cls) const { return !loaded_[cls].list && !loaded_[cls].spare; }
  // At least `n` blocks of `cls` in the loaded list: the next n Gets cannot fail.
  void Reserve(uint32_t cls, uint32_t n) {
    while (loaded_[cls].count < n) [[unlikely]] Grow(cls);
  }
  void Flush();

 private:
  struct Loaded {
    FreeBlock* list = nullptr;
    FreeBlock* spare = nullptr;  // a full magazine, or none
    uint32_t count = 0;
  };
  void Refill(uint32_t cls);
  void MakeRoom(uint32_t cls);
  void Grow(uint32_t cls);

  Arena& arena_;
  std::array<Loaded, kClasses> loaded_{};
};

}  // namespace engine::detail
