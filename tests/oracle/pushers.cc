// The threads that push, and what they do between their pushes.
#include "faults.h"
#include "world.h"

namespace engine::oracle {

using namespace std::chrono_literals;

std::unique_ptr<World::Pusher> World::NewPusher(uint64_t number) {
  auto pusher = std::make_unique<Pusher>();
  pusher->number = number;
  return pusher;
}

// What bodies push is recorded apart from what pushers push.
World::Pusher* World::BorrowPusher() {
  std::lock_guard lock(pushers_mu_);
  if (spare_pushers_.empty()) {
    pushers_.push_back(NewPusher(kInside));
    return pushers_.back().get();
  }
  Pusher* const pusher = spare_pushers_.back();
  spare_pushers_.pop_back();
  return pusher;
}
void World::GiveBack(Pusher* pusher) {
  pusher->runs.clear();
  std::lock_guard lock(pushers_mu_);
  spare_pushers_.push_back(pusher);
}

void World::BetweenPushes(Pusher& me, Random& random, std::vector<std::unique_ptr<Bulk>>& bulks,
                          std::unique_ptr<PolicyScope>& policy) {
  if (Has(kBulks) && random.OneIn(30)) {
    if (!bulks.empty() && random.OneIn(2)) {
      // Scopes end in any order.
      bulks.erase(bulks.begin() + static_cast<ptrdiff_t>(random.Below(bulks.size())));
    } else if (bulks.size() < 3) {
      bulks.push_back(std::make_unique<Bulk>(*eng_, static_cast<int>(random.Below(static_cast<uint64_t>(s_.bulk)))));
    }
    if (!bulks.empty() && random.OneIn(4)) bulks.back()->Release();
    if (random.OneIn(10)) SetBulkSize(*eng_, static_cast<int>(random.Below(20)));
  }
  if (Has(kPolicy) && random.OneIn(100)) {
    policy.reset();
    if (random.OneIn(2)) {
      PolicyChoice choice{static_cast<Policy>(random.Below(4)), {}};
      if (choice.policy == Policy::kNaive && Has(kRaise)) choice.options.raise_at_push = random.OneIn(2);
      policy.reset(new PolicyScope(eng_->EnterPolicy(choice)));
    }
  }
  if (Has(kDelete) && random.OneIn(25)) RefreshSlot(slots_[random.Below(kSlots)], random.OneIn(2));
  if (Has(kCancel) && random.OneIn(200)) {
    Scope& scope = *scopes_[random.Below(scopes_.size())];
    uint64_t not_yet = kNever;
    if (scope.begin.compare_exchange_strong(not_yet, Tick())) {
      scope.scope.Cancel();
      scope.end = Tick();
    }
  }
  if (me.held.size() > 4 || (!me.held.empty() && random.OneIn(8))) me.held.pop_front();
  DropRuns(me, random);
}

void World::WaitNowAndThen(Pusher& me, Random& random) {
  if (Has(kWaitOutside) && random.OneIn(40)) {
    // A thread that waits must not hold the op for which it waits.
    me.held.clear();
    DropMail();
    const uint64_t what = random.Below(8);
    if (what == 0) {
      WaitForEverything(me, random);
    } else if (what == 1 && !me.runs.empty()) {
      WaitForRun(me);
    } else if (what == 2 && !me.runs.empty() && me.runs.back().op->run_var != OpRecord::kNoVar) {
      WaitForVar(me, random, me.runs.back().op->run_var, me.runs.back().run.var(), false);
    } else if (what == 3 && !me.runs.empty() && me.runs.back().op->out_var != OpRecord::kNoVar) {
      WaitForVar(me, random, me.runs.back().op->out_var, me.runs.back().output, false);
    } else {
      const auto var = static_cast<uint32_t>(random.Below(vars_.size()));
      if (what >= 6 && Has(kAwait)) return AwaitVar(me, random, var);
      WaitForVar(me, random, var, vars_[var], false);
    }
  }
  if (random.OneIn(100)) DropMail();
  if (random.OneIn(200)) std::this_thread::sleep_for(std::chrono::microseconds(random.Below(3000)));
}

// Nobody waits any more, so shutdown finds ops of all kinds held.
void World::AtTheEnd(Pusher& me, Random& random) {
  constexpr int kLast = 30;
  ++at_end_;
  while (at_end_ < s_.pushers) std::this_thread::yield();
  for (int i = 0; i < kLast; ++i) PushOne(me, random, 0);
  std::lock_guard lock(mail_mu_);
  for (HeldOp& held : me.held) left_.push_back(std::move(held));
  if (me.held_ops) left_held_ops_.push_back(std::move(me.held_ops));
  me.held.clear();
}

void World::PusherMain(uint64_t number) {
  std::unique_ptr<Pusher> owned = NewPusher(number);
  Pusher& me = *owned;
  Random random(seed_ * 131 + number);
  std::vector<std::unique_ptr<Bulk>> bulks;
  std::unique_ptr<PolicyScope> policy;
  if (Has(kBulks) && random.OneIn(2)) SetBulkSize(*eng_, static_cast<int>(random.Below(20)));
  for (int64_t i = 0; i < s_.ops; ++i) {
    BetweenPushes(me, random, bulks, policy);
    PushOne(me, random, 0);
    WaitNowAndThen(me, random);
  }
  policy.reset();
  while (!bulks.empty()) bulks.pop_back();
  me.held.clear();
  DropMail();
  me.held_ops.reset();
  if (s_.ending == Ending::kShutdown || s_.ending == Ending::kDestroyed) AtTheEnd(me, random);
  if (Has(kRunVars)) {  // these handles go after the engine
    std::lock_guard lock(mail_mu_);
    for (KeptRun& kept : me.runs) left_runs_.push_back(std::move(kept.run));
  }
  me.runs.clear();
  std::lock_guard lock(pushers_mu_);
  pushers_.push_back(std::move(owned));
}

}  // namespace engine::oracle
