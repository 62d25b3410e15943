// Silence: releases bulks whose owner has pushed nothing for a millisecond. One thread for all bulks of the process.
//
// Each bulk counts its pushes in a word of its own. At every tick the thread looks at all words: a bulk that is open and
// has not moved since the tick before is released. So a bulk is left alone for 1 ms of silence at least and 2 ms at most, and
// a push costs a store. When no bulk is open the thread sleeps, and an opening that finds it asleep wakes it.
//
// Threads:   every method on any. Ownership: bulks are shared with their owners, and released without the lock held.
// Order:     mu_ is held with no other lock. Fork: the child has no such thread and makes a Silence anew; what was watched
//            in the parent is watched again when it opens.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/engine.h"

namespace engine::bulk {

struct Watched {
  explicit Watched(Engine& engine) : ops(engine) {}
  HeldOps ops;
  // Moves by 2 with each push; odd while ops are held. Written by the owner alone; relaxed but where a bulk opens.
  std::atomic<uint64_t> mark{0};
  uint64_t seen = 0;  // the mark at the last tick; the watcher's
};

class Silence {
 public:
  static Silence& Get();  // of this process

  bool Watch(std::shared_ptr<Watched> bulk) noexcept;  // false: there is no memory for it
  void Unwatch(const Watched* bulk) noexcept;
  // The owner has just stored the mark of a bulk that opened. False: nobody watches it, the system refused us a thread.
  bool Opened() {
    // seq_cst, as is that store: either we see the thread asleep, or it sees the mark. Partner: Main.
    if (asleep_.load(std::memory_order_seq_cst)) [[unlikely]]
      return Wake();
    return true;
  }
  bool Tick();  // false: nothing is open
  void ByHand(bool by_hand);

 private:
  bool Wake();
  void Main();
  bool AnyOpen() const;  // mu_ held

  std::mutex mu_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Watched>> watched_;
  std::atomic<bool> asleep_{true};
  bool started_ = false;
  bool by_hand_ = false;
};

}  // namespace engine::bulk
