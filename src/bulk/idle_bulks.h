// IdleBulks: releases bulks whose owner has pushed nothing for a millisecond. One thread for all bulks of the process.
//
// Each bulk counts its pushes in a word of its own, so a push costs one store. At every tick the thread looks at all
// words, and releases each bulk that is open and whose word is as it was at the tick before: after 1 ms without a push
// at least, and 2 ms at most. When no bulk is open the thread sleeps; the owner of a bulk that opens then wakes it.
//
// Threads:   every method on any thread. Ownership: bulks are shared with their owners. They are released outside mu_.
// Order:     no other lock is taken under mu_, nor mu_ under another. Fork: the child has no such thread and makes a
//            new IdleBulks; a bulk that the parent's watched is watched again when it opens.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/engine.h"
#include "engine/spi/held_ops.h"

namespace engine::bulk {

struct Watched {
  explicit Watched(Engine& engine) : ops(engine) {}
  HeldOps ops;
  // Each push adds 2; odd while ops may be held. Only the owner writes it: relaxed, except for the store that opens a
  // bulk.
  std::atomic<uint64_t> mark{0};
  uint64_t seen = 0;  // the mark at the last tick; under IdleBulks::mu_
};

class IdleBulks {
 public:
  static IdleBulks& Get();  // of this process

  bool Watch(std::shared_ptr<Watched> bulk) noexcept;  // false: there is no memory for the list
  void Unwatch(const Watched* bulk) noexcept;
  // Called when the owner has just stored the mark of a bulk that opened. False: nobody watches, because the system
  // refused a thread.
  bool Opened() {
    // seq_cst, as that store is: either this load sees that the thread sleeps, or the thread sees the mark. Partner:
    // Main.
    if (asleep_.load(std::memory_order_seq_cst)) [[unlikely]]
      return Wake();
    return true;
  }
  bool Tick();  // false: no bulk is open
  void ByHand(bool by_hand);

 private:
  bool Wake();
  void Main();
  bool AnyOpen() const;  // under mu_

  std::mutex mu_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Watched>> watched_;
  std::atomic<bool> asleep_{true};
  bool started_ = false;
  bool by_hand_ = false;
};

}  // namespace engine::bulk
