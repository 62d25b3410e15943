// Waits of all kinds; each is recorded with the error that it threw.
#include "world.h"

namespace engine::oracle {

void World::WaitForVar(Pusher& me, Random& random, uint32_t index, const Var& var, bool inside) {
  WaitRecord wait;
  wait.var = index;
  wait.begin = Tick();
  bool over = true;
  try {
    switch (random.Below(inside ? 2 : 4)) {
      case 0: eng_->Wait(var); break;
      case 1:
        wait.to_write = true;
        eng_->WaitToWrite(var);
        break;
      case 2: over = eng_->WaitFor(var, std::chrono::nanoseconds(random.Below(2000))); break;
      default: over = eng_->WaitFor(var, std::chrono::microseconds(random.Below(3000))); break;
    }
  } catch (const OpError& error) {
    wait.root = log_.Shown(error);
    for (const OpError::Hop& hop : error.path()) wait.path.push_back(hop.op);
  } catch (const UsageError& error) {
    if (shutdown_begin_ == kNever && !(inside && LacksStandIn(error)))
      log_.Complain("a wait was refused: %s", error.what());
    return;
  }
  wait.end = Tick();
  if (over) me.waits.push_back(std::move(wait));
}

void World::WaitForEverything(Pusher& me, Random& random) {
  WaitRecord wait;
  wait.begin = Tick();
  try {
    if (random.OneIn(2)) {
      if (!eng_->WaitAllFor(std::chrono::microseconds(random.Below(5000)))) return;
    } else {
      eng_->WaitAll();
    }
  } catch (const OpError& error) {
    log_.Reported(error);
  }
  wait.end = Tick();
  me.waits.push_back(std::move(wait));
}

void World::WaitForRun(Pusher& me) {
  KeptRun kept = std::move(me.runs.front());
  me.runs.pop_front();
  WaitRecord wait;
  wait.run = kept.op;
  wait.begin = Tick();
  try {
    kept.run.Wait();
  } catch (const OpError& error) {
    wait.root = log_.Shown(error);
  }
  wait.end = Tick();
  me.waits.push_back(std::move(wait));
}

}  // namespace engine::oracle
