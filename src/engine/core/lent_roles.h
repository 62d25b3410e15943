// LentRoles: what a thread that waits inside ops gives to stand-ins meanwhile: its worker's role in every engine whose op is
// on its stack, and the driving of the caller pools that such ops come from, or that the awaited op may lie in. So no op ever
// runs on a waiting op's stack, and what it waits for runs all the same, also in another engine.
//
// Threads: on the stack of the thread that waits.
// Errors:  UsageError beyond max_spare_threads of the awaited engine, Error where no thread can be made. Where another
//          engine has no stand-in left, its worker stays blocked, as by any body that blocks.
#pragma once

#include <utility>

#include "core/threads.h"

namespace engine::detail {

class LentRoles {
 public:
  LentRoles() = default;
  ~LentRoles();
  LentRoles(const LentRoles&) = delete;
  void Lend(EngineCore& awaited);

  // An op of the caller pool waits for somebody to run it. False: there is a driver, or none can be had.
  bool AddDriver(EngineCore& core);
  bool MayAddDriver(const EngineCore& core) const;

 private:
  // The calling worker's role, and a driver if the op on this thread came from the caller pool, or is another engine's that
  // waits for one of this engine.
  void LendOf(EngineCore& core);
  void Keep(EngineThread* driver) { driver->next_lent = std::exchange(drivers_, driver); }

  EngineThread* drivers_ = nullptr;  // linked by next_lent
  bool none_to_be_had_ = false;
};

}  // namespace engine::detail
