// World::Put: one push of an op: its record, its Vars, and how it is pushed.
#pragma once

#include <cstring>
#include <new>

#include "faults.h"
#include "world.h"

namespace engine::oracle {

struct World::Put {
  Pusher& me;
  Random& random;
  OpRecord& op;
  Sets sets;
  OpDesc desc;
  uint32_t kind;

  bool inside() const { return op.depth > 0; }
};

// Calls push(), which returns false if there was no room, and notes how it went.
template <class F>
void World::Attempt(Pusher& me, OpRecord& op, F&& push) {
  pushes_.fetch_add(1, std::memory_order_relaxed);
  noise_.Point(me.number, op.seed);
  std::optional<FailingAllocations> failing;
  if (Has(kNoMemory) && !Inside(me) && op.seed % 8 == 1) failing.emplace(1 + static_cast<int64_t>(op.seed / 8 % 4));
  op.push_begin = Tick();
  try {
    op.push = push() ? PushEnd::kAccepted : PushEnd::kNoRoom;
  } catch (const OpError& error) {  // raise_at_push
    failing.reset();
    op.push = PushEnd::kAccepted;
    log_.Shown(error);
  } catch (const UsageError& error) {
    failing.reset();
    op.push = PushEnd::kRefused;
    // A source of a stage is no op, and the destructor of a closure may be inside of none.
    const bool closed = shutdown_begin_ != kNever && (!Inside(me) || Has(kStages) || me.in_destructor);
    if (!strstr(error.what(), "deleted") && !closed) log_.Complain("o%u was refused: %s", op.id, error.what());
  } catch (const std::bad_alloc&) {
    failing.reset();
    op.push = PushEnd::kNoMemory;
    if (!Has(kNoMemory)) log_.Complain("o%u: bad_alloc", op.id);
  } catch (const Error& error) {  // the system refused a thread for the op's pool; the push was refused too
    failing.reset();
    op.push = PushEnd::kNoMemory;
    if (!Has(kNoThreads)) log_.Complain("o%u was refused: %s", op.id, error.what());
  }
  op.push_end = Tick();
}

}  // namespace engine::oracle
