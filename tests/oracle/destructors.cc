// Closures whose destructors push: of ops that ran, were skipped or were refused, inside ops and outside of them.
#include "faults.h"
#include "world.h"

namespace engine::oracle {

void World::PushFromDestructor(OpRecord& op) {
  // Not those of ops that may be over before their closure goes: nobody would wait for what they push.
  if (!Has(kDestructorsPush) || op.seed % 8 != 3 || op.depth >= 2 || op.on_device || op.asynchronous) return;
  if (!eng_ || getpid() != pid_) return;  // held ops may be dropped behind the engine, and in a fork's child
  Random random(op.seed + 1);
  Pusher* const me = BorrowPusher();
  me->in_destructor = true;
  PushOne(*me, random, op.depth + 1);
  me->in_destructor = false;
  GiveBack(me);
}

}  // namespace engine::oracle
