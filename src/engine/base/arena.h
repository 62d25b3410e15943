// Arena: recycled memory for ops, reader groups and Vars, by size class.
//
// Words: a *slab* is memory from the system, cut into blocks of one class. A *magazine* is an array of free blocks; the
// *depot* is all magazines that no cache has.
// Way of a block: slab -> depot -> magazine -> a thread's BlockCache -> in use -> the cache of the thread that finished
// with it -> depot. No memory returns to the system before the engine goes, and a block keeps its class, so a stale
// look at a recycled op still reads an op.
//
// Magazines are made together with slabs and caches, and never because blocks moved from thread to thread: without a
// new slab or a new thread nothing is allocated, whichever threads take and give back.
//
// A magazine is an array of pointers, not a list through the blocks, because the thread that takes a block would then
// wait for the cache line that the finishing thread wrote last. With an array it only writes the block, and prefetches.
//
// Without memory: taking a block throws and has changed nothing; giving a block back never fails.
//
// Threads:   Arena is thread-safe (one mutex, taken once for each magazine). A BlockCache belongs to one thread at a
//            time.
// Ownership: caches have magazines of the arena, and give them back with Flush.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/asserts.h"
#include "base/sync.h"
#include "base/tuning.h"

namespace engine::detail {

// Size class c holds blocks of 64*c bytes.
inline constexpr uint32_t kClasses = 17;
inline constexpr uint32_t ClassOf(size_t bytes) { return static_cast<uint32_t>((bytes + 63) / 64); }
inline constexpr uint32_t kGroupClass = 1;
inline constexpr uint32_t kFirstOpClass = 2;
// Class kLargeClass + n holds blocks of 2^n bytes, for ops with many Vars.
inline constexpr uint32_t kLargeClass = 0x80;
inline constexpr uint32_t kEndOfClasses = 0x100;
inline constexpr size_t BlockBytes(uint32_t cls) {
  return cls < kLargeClass ? size_t{64} * cls : size_t{1} << (cls - kLargeClass);
}

struct Magazine {
  Magazine* next;
  uint32_t count;
  uint32_t capacity;
  void* block[1];  // `capacity` pointers
};

class Arena {
 public:
  Arena(BlockKind kind, size_t max_pending);
  ~Arena();
  Arena(const Arena&) = delete;

  uint32_t magazine() const { return magazine_; }
  BlockKind kind() const { return kind_; }
  // Takes a full magazine and gives an empty one (or none) back, or the reverse. Op blocks outside the depot count as
  // outstanding.
  Magazine* TakeFull(uint32_t cls, Magazine* empty) EXCLUDES(mu_);
  Magazine* TakeEmpty(uint32_t cls, Magazine* full) EXCLUDES(mu_);
  // Gives back a magazine that has any number of blocks.
  void Put(uint32_t cls, Magazine* magazine) EXCLUDES(mu_);
  // Makes a cache's magazine hold at least `n` blocks; if it is too small, a larger one takes its place.
  void Enlarge(uint32_t cls, Magazine*& held, uint32_t n) EXCLUDES(mu_);
  // Takes back a block for which a cache has no room.
  void KeepLoose(uint32_t cls, void* block) EXCLUDES(mu_);
  // Announces that a cache will hold blocks of one more class.
  void AddUser() EXCLUDES(mu_);

  // How many op blocks are handed out, those in caches included.
  size_t outstanding() const { return outstanding_.load(std::memory_order_relaxed); }
  // A block that is too large for the classes up to kClasses, in a class of its own; it is reused when it has come
  // back.
  void* TakeLarge(size_t bytes, uint32_t* cls) EXCLUDES(mu_);
  void ReturnLarge(uint32_t cls, void* block) EXCLUDES(mu_);

  // Visits every block of the classes [from, to) that was ever made, in use or not, with its class; the caller must know
  // which are in use.
  void ForEachBlock(uint32_t from, uint32_t to, const std::function<void(void*, uint32_t)>& visit) EXCLUDES(mu_);
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
  struct LargeBlock {
    void* block;
    uint32_t cls;
  };
  Magazine* MakeMagazine(uint32_t capacity) REQUIRES(mu_);
  Magazine* EmptyMagazine() REQUIRES(mu_);
  Magazine* LargeMagazine(uint32_t n) REQUIRES(mu_);
  void MakeEnough(size_t blocks, size_t users) REQUIRES(mu_);
  Magazine* Full(uint32_t cls) REQUIRES(mu_);
  void* Carve(uint32_t cls) REQUIRES(mu_);
  void* Take(uint32_t cls) REQUIRES(mu_);
  void Keep(uint32_t cls, Magazine* magazine) REQUIRES(mu_);

  const BlockKind kind_;
  const uint32_t magazine_;
  Mutex mu_;
  std::array<Magazine*, kClasses> full_ GUARDED_BY(mu_){};
  Magazine* empty_ GUARDED_BY(mu_) = nullptr;
  Magazine* empty_large_ GUARDED_BY(mu_) = nullptr;
  // Magazines that are neither full nor empty; blocks of other such magazines are poured into them, so one a class is
  // enough.
  std::array<Magazine*, kClasses> broken_ GUARDED_BY(mu_){};
  std::array<void*, kClasses> loose_ GUARDED_BY(mu_){};
  std::array<Slab, kClasses> open_ GUARDED_BY(mu_){};  // the slab being cut; blocks = how many were cut so far
  std::vector<Slab> slabs_ GUARDED_BY(mu_);
  std::vector<void*> magazines_ GUARDED_BY(mu_);                   // all magazines, to free them at the end
  size_t usual_ GUARDED_BY(mu_) = 0;                               // how many of these have a capacity of `magazine_`
  size_t blocks_ GUARDED_BY(mu_) = 0;                              // in all slabs
  size_t users_ GUARDED_BY(mu_) = 0;                               // caches, each counted once a class that it holds
  std::vector<LargeBlock> large_ GUARDED_BY(mu_);                  // all large blocks
  std::array<std::vector<void*>, 48> free_large_ GUARDED_BY(mu_);  // by logarithm of their size
  // relaxed: a soft bound and statistics; the mutex orders the blocks themselves.
  std::atomic<size_t> outstanding_{0};
  std::atomic<uint64_t> slab_bytes_{0};
  std::atomic<uint64_t> slab_allocations_{0};
};

// BlockCache: two magazines for each class, so that a thread at the edge of one does not go to the depot for each op.
class BlockCache {
 public:
  explicit BlockCache(Arena& arena) : arena_(arena) {}

  // Null if Get would need more than the current magazine.
  [[gnu::always_inline]] void* TryGet(uint32_t cls) {
    Magazine* m = loaded_[cls].now;
    if (!m || m->count == 0) return nullptr;
    const uint32_t left = --m->count;
    if (left >= tuning::kPrefetchBlocks) PrefetchBlock(m->block[left - tuning::kPrefetchBlocks], cls);
    CheckPoison(arena_.kind(), cls, m->block[left]);
    return m->block[left];
  }
  void* Get(uint32_t cls) {
    if (void* block = TryGet(cls)) [[likely]]
      return block;
    Magazine* m = Refill(cls);
    CheckPoison(arena_.kind(), cls, m->block[m->count - 1]);
    return m->block[--m->count];
  }
  [[gnu::always_inline]] void Return(uint32_t cls, void* block) {
    PoisonBlock(arena_.kind(), cls, block);
    Magazine* m = loaded_[cls].now;
    if (!m || m->count >= m->capacity) [[unlikely]] {
      m = MakeRoom(cls);
      if (!m) return arena_.KeepLoose(cls, block);
    }
    m->block[m->count++] = block;
  }
  bool Empty(uint32_t cls) const {
    const Loaded& l = loaded_[cls];
    return !(l.now && l.now->count) && !(l.spare && l.spare->count);
  }
  // After it the next `n` Gets of class `cls` cannot fail: the current magazine has that many blocks.
  void Reserve(uint32_t cls, uint32_t n) {
    if (Magazine* m = loaded_[cls].now; !m || m->count < n) [[unlikely]]
      Enlarge(cls, n);
  }
  void Flush();

 private:
  struct Loaded {
    Magazine* now = nullptr;
    Magazine* spare = nullptr;
    bool known = false;  // counted by Arena::AddUser
  };
  Loaded& Known(uint32_t cls);
  Magazine* Refill(uint32_t cls);
  Magazine* MakeRoom(uint32_t cls) noexcept;
  void Enlarge(uint32_t cls, uint32_t n);

  Arena& arena_;
  std::array<Loaded, kClasses> loaded_{};
};

}  // namespace engine::detail
