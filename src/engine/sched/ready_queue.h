// ReadyQueue: the ready ops that one thread has queued for one pool; a deque for each priority level.
//
// The owner pushes at the tail. A worker's own queue is a work-stealing deque (Chase & Lev 2005, with the orders of Lê
// et al. 2013): its owner also pops at the tail. The owner of an outside thread's queue never pops, so takers may take
// several ops at once.
//
// Threads:   Push, TryPush, Pop, TakeBack: the owner. Steal, Empty, Size, and TakeMany where the owner never pops: any thread.
// Ownership: ops pass through. Buffers grow, and are kept until the queue goes, because a thief may still read an old
//            one.
// Order:     takers get the oldest op first; the owner's Pop gets the newest first.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/sync.h"
#include "base/tuning.h"
#include "order/priority.h"

namespace engine::detail {

class ReadyDeque {
 public:
  // False: the owner knows of no room, and Push would make some.
  [[gnu::always_inline]] bool TryPush(OpRecord* op) {
    const int64_t t = tail_.load(std::memory_order_relaxed);
    Buffer* b = buffer_.load(std::memory_order_relaxed);
    if (!b || t - head_seen_ >= b->capacity) [[unlikely]]
      return false;
    Store(t, b, op);
    return true;
  }
  // Throws if there is no memory for more room, and has changed nothing then.
  void Push(OpRecord* op) {
    if (TryPush(op)) return;
    const int64_t t = tail_.load(std::memory_order_relaxed);
    Store(t, MakeRoom(t, buffer_.load(std::memory_order_relaxed)), op);
  }

  OpRecord* Pop() {
    const int64_t t = tail_.load(std::memory_order_relaxed) - 1;
    if (t < head_.load(std::memory_order_relaxed)) return nullptr;
    Buffer* b = buffer_.load(std::memory_order_relaxed);
    tail_.store(t, std::memory_order_relaxed);
    // seq_cst: our claim of t comes before our look at head. Partner: the fence in Steal, between its looks at head and
    // tail.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    int64_t h = head_.load(std::memory_order_relaxed);
    if (h < t) return b->at(t).load(std::memory_order_relaxed);
    OpRecord* op = nullptr;
    if (h == t && head_.compare_exchange_strong(h, h + 1, std::memory_order_seq_cst, std::memory_order_relaxed))
      op = b->at(t).load(std::memory_order_relaxed);
    tail_.store(t + 1, std::memory_order_relaxed);
    return op;
  }

  // Takes the oldest op. Works on every queue.
  OpRecord* Steal() {
    int64_t h = head_.load(std::memory_order_acquire);
    std::atomic_thread_fence(std::memory_order_seq_cst);  // partner: the fence in Pop
    const int64_t t = tail_.load(std::memory_order_acquire);
    if (h >= t) return nullptr;
    Buffer* b = buffer_.load(std::memory_order_acquire);
    OpRecord* op = b->at(h).load(std::memory_order_relaxed);
    // The claim. If it fails, another thread took the op, and what we read from the slot does not count.
    if (!head_.compare_exchange_strong(h, h + 1, std::memory_order_seq_cst, std::memory_order_relaxed)) return nullptr;
    return op;
  }

  // The owner takes back an op that it pushed: true if the op is the oldest one here, and nobody else has taken it.
  bool TakeBack(const OpRecord* op) {
    int64_t h = head_.load(std::memory_order_acquire);
    if (h >= tail_.load(std::memory_order_relaxed)) return false;
    if (buffer_.load(std::memory_order_relaxed)->at(h).load(std::memory_order_relaxed) != op) return false;
    // The claim, as in Steal. head only grows, so if it is still h, what we read from the slot counts.
    return head_.compare_exchange_strong(h, h + 1, std::memory_order_seq_cst, std::memory_order_relaxed);
  }

  // Takes up to `most` of the oldest ops into `out`. Only for a queue whose owner never pops. Reads the owner's cache
  // line only if all ops that it knew of are taken, so that a busy pusher keeps the line.
  uint32_t TakeMany(OpRecord** out, uint32_t most) {
    int64_t h = head_.load(std::memory_order_acquire);
    for (;;) {
      int64_t t = tail_seen_.load(std::memory_order_acquire);
      if (h >= t) {
        t = tail_.load(std::memory_order_acquire);
        if (h >= t) return 0;
        // release: what the acquire above made visible stays visible through tail_seen_. Partner: the acquire load of
        // tail_seen_.
        tail_seen_.store(t, std::memory_order_release);
      }
      Buffer* b = buffer_.load(std::memory_order_acquire);
      const auto n = static_cast<uint32_t>(t - h < most ? t - h : most);
      for (uint32_t i = 0; i < n; ++i) out[i] = b->at(h + i).load(std::memory_order_relaxed);
      for (uint32_t i = n == 1 ? tuning::kPrefetchAhead - 1 : 0; i < tuning::kPrefetchAhead; ++i)
        PrefetchBlock(b->at(h + n + i).load(std::memory_order_relaxed));  // a stale pointer only wastes a fetch
      if (head_.compare_exchange_weak(h, h + n, std::memory_order_acq_rel, std::memory_order_acquire)) return n;
    }
  }

  bool Empty() const { return head_.load(std::memory_order_acquire) >= tail_.load(std::memory_order_acquire); }
  int64_t Size() const {
    const int64_t n = tail_.load(std::memory_order_acquire) - head_.load(std::memory_order_acquire);
    return n > 0 ? n : 0;
  }

 private:
  struct Buffer {
    explicit Buffer(int64_t n) : capacity(n), slots(std::make_unique<std::atomic<OpRecord*>[]>(n)) {}
    std::atomic<OpRecord*>& at(int64_t i) { return slots[i & (capacity - 1)]; }
    const int64_t capacity;
    std::unique_ptr<std::atomic<OpRecord*>[]> slots;
  };

  // release: the store of the tail publishes the op. Partner: the acquire loads of the takers.
  [[gnu::always_inline]] void Store(int64_t t, Buffer* b, OpRecord* op) {
    b->at(t).store(op, std::memory_order_relaxed);
    tail_.store(t + 1, std::memory_order_release);
  }

  [[gnu::noinline]] Buffer* MakeRoom(int64_t t, Buffer* b) {
    // acquire: the takers have read the slots that we overwrite. Partner: their exchange of head.
    head_seen_ = head_.load(std::memory_order_acquire);
    if (b && t - head_seen_ < b->capacity) return b;
    auto grown = std::make_unique<Buffer>(b ? 2 * b->capacity : 64);
    for (int64_t i = head_seen_; i < t; ++i)
      grown->at(i).store(b->at(i).load(std::memory_order_relaxed), std::memory_order_relaxed);
    buffers_.push_back(std::move(grown));
    // release: the copied slots. Partner: the acquire loads of buffer_.
    buffer_.store(buffers_.back().get(), std::memory_order_release);
    return buffers_.back().get();
  }

  alignas(64) std::atomic<int64_t> head_{0};  // the takers' cache line
  std::atomic<int64_t> tail_seen_{0};
  alignas(64) std::atomic<int64_t> tail_{0};  // the owner's cache line
  std::atomic<Buffer*> buffer_{nullptr};
  int64_t head_seen_ = 0;
  std::vector<std::unique_ptr<Buffer>> buffers_;
};

struct ReadyQueue {
  std::array<ReadyDeque, kLevels> level;
  bool owner_pops = false;  // true for a worker's own queue; written before the pool lists the queue
};

}  // namespace engine::detail
