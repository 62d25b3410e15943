// LentRoles: while a thread waits inside an op, stand-ins do what this thread would do otherwise. One plays the
// worker's role, in every engine of which an op is on the stack. Another one drives the caller pool of each engine, if
// an op on the stack came from there or the awaited op may be there. So no op ever runs on the stack of a waiting op,
// and the awaited op runs all the same, also if it belongs to another engine.
//
// Threads: lies on the stack of the thread that waits.
// Errors:  UsageError beyond max_spare_threads of the awaited engine; Error if no thread can be made. If another engine
//          on the stack has no stand-in left, its worker stays blocked, as it is by any body that blocks.
#pragma once

#include <utility>

#include "core/threads.h"

namespace engine::detail {

class LentRoles {
 public:
  LentRoles();
  ~LentRoles();
  LentRoles(const LentRoles&) = delete;
  void Lend(EngineCore& awaited);
  // Only the calling worker's role in this engine, if it has one.
  static void LendWorker(EngineCore& core);

  // Called when the caller pool has an op: gets a thread that drives it. False: there is one already, or none can be
  // had.
  bool AddDriver(EngineCore& core);
  bool MayAddDriver(const EngineCore& core) const;

 private:
  // For one engine: LendWorker, and a driver if an op on this stack came from that engine's caller
  // pool, or if no op of that engine is on the stack and its caller pool is in use.
  void LendOf(EngineCore& core);
  void Keep(EngineThread* driver) { driver->next_lent = std::exchange(drivers_, driver); }

  // Notes in the frames on this stack, and ends, what is an own run of this thread in that engine (ThreadSlot::own_runs). It goes on
  // behind the wait.
  static void PauseOwnRun(EngineCore& core);

  const uint32_t forks_ = Forks();
  EngineThread* drivers_ = nullptr;  // linked by next_lent
  bool none_to_be_had_ = false;
};

}  // namespace engine::detail
