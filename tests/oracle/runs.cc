// The handles of runs: they go at any moment, on any thread, while ops that were pushed behind the run look at its error.
#include "world.h"

namespace engine::oracle {

// Keeps the handle, or has it go at once, or as soon as the run has ended: then the run's error goes beside those who
// take it.
void World::KeepRun(Pusher& me, Random& random, KeptRun kept) {
  if (!Has(kRunVars)) {
    if (random.OneIn(2)) me.runs.push_back(std::move(kept));
    return;
  }
  me.runs.push_back(std::move(kept));
  if (random.OneIn(4)) me.runs.pop_back();
}

// The next op may read the Var of a run, or that of its output.
void World::PushBehindARun(Pusher& me, Random& random, Want& want) {
  if (!Has(kRunVars | kRunOutputs) || me.runs.empty() || random.OneIn(2)) return;
  const KeptRun& kept = me.runs[random.Below(me.runs.size())];
  want.behind_output =
      kept.op->out_var != OpRecord::kNoVar && (kept.op->run_var == OpRecord::kNoVar || random.OneIn(2));
  if (want.behind_output || kept.op->run_var != OpRecord::kNoVar) want.behind = &kept;
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
