// LentRoles: what a thread that waits inside ops gives to stand-ins meanwhile: its worker's role in every engine whose op is
// on its stack, and the driving of the caller pools that such ops come from, or that the awaited op may lie in. So no op ever
// runs on a waiting op's stack, and what it waits for runs all the same, also in another engine.
//
// Threads: on the stack of the thread that waits. Errors: UsageError beyond max_spare_threads of the awaited engine, Error where no thread can be made. Where
// another engine has no stand-in left, its worker stays blocked, as by any body that blocks.
#pragma once

#include <new>
#include <utility>

#include "core/engine_thread.h"

namespace engine::detail {

class LentRoles {
 public:
  LentRoles() = default;
  ~LentRoles() {
    while (EngineCore::EngineThread* driver = drivers_) {
      drivers_ = driver->next_lent;
      EngineCore::EndDriving(driver);
    }
  }
  LentRoles(const LentRoles&) = delete;
  void Lend(EngineCore& awaited) {
    Lend(&awaited);
    if (t_in_piece) return;  // the roles are another thread's, and ops on its stack must not be touched here
    for (const RunFrame* f = t_frame; f; f = f->outer) {
      bool seen = f->core == &awaited;
      for (const RunFrame* inner = t_frame; inner != f; inner = inner->outer) seen |= inner->core == f->core;
      if (seen) continue;
      try {
        Lend(f->core);
      } catch (const Error&) {
      } catch (const std::bad_alloc&) {
      }
    }
  }

  // An op of the caller pool waits for somebody to run it. False: there is a driver, or none can be had.
  bool AddDriver(EngineCore& core) {
    if (!MayAddDriver(core)) return false;
    try {
      Keep(core.StartDriver());
      return true;
    } catch (const Error&) {
    } catch (const std::bad_alloc&) {
    }
    none_to_be_had_ = true;
    return false;
  }
  bool MayAddDriver(const EngineCore& core) const {
    for (const EngineCore::EngineThread* driver = drivers_; driver; driver = driver->next_lent)
      if (driver->core == &core) return false;
    return !none_to_be_had_;
  }

 private:
  void Lend(EngineCore* core) {
    if (EngineCore::EngineThread* driver = core->LendRole()) Keep(driver);
  }
  void Keep(EngineCore::EngineThread* driver) { driver->next_lent = std::exchange(drivers_, driver); }
  EngineCore::EngineThread* drivers_ = nullptr;  // linked by next_lent
  bool none_to_be_had_ = false;
};

}  // namespace engine::detail
