// The handles of runs: they go at any moment, on any thread, while ops that were pushed behind the run look at its error.
#include "world.h"

namespace engine::oracle {

// Keeps the handle, or has it go at once, or as soon as the run has ended: then the run's error goes beside those who
// take it.
void World::KeepRun(Pusher& me, Random& random, engine::Run run, OpRecord& op) {
  if (!Has(kRunVars)) {
    if (random.OneIn(2)) me.runs.push_back({std::move(run), &op});
    return;
  }
  me.runs.push_back({std::move(run), &op});
  if (random.OneIn(4)) me.runs.pop_back();
}

// A run whose Var the next op shall read; null: none.
const World::KeptRun* World::RunToPushBehind(Pusher& me, Random& random) {
  if (!Has(kRunVars) || me.runs.empty() || random.OneIn(2)) return nullptr;
  const KeptRun& kept = me.runs[random.Below(me.runs.size())];
  return kept.op->run_var == OpRecord::kNoVar ? nullptr : &kept;
}

void World::DropRuns(Pusher& me, Random& random) {
  constexpr size_t kMost = 6;
  if (me.runs.size() > kMost) me.runs.pop_front();
  if (!Has(kRunVars) || me.runs.empty()) return;
  if (random.OneIn(4)) {
    const engine::Run last = std::move(me.runs.back().run);
    me.runs.pop_back();
    for (int looks = 0; looks < 100 && !last.done(); ++looks) std::this_thread::yield();
  } else if (random.OneIn(4)) {  // another thread will drop it
    std::lock_guard lock(mail_mu_);
    run_mail_.push_back(std::move(me.runs.front().run));
    me.runs.pop_front();
  }
}

}  // namespace engine::oracle
