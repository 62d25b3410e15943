// Threads that interfere: stop and start, switch policies, trace, describe, fork, shut down.
#include "faults.h"
#include "world.h"

namespace engine::oracle {

void World::StopAndStart(Random& random) {
  eng_->Stop();
  if (random.OneIn(3)) std::this_thread::sleep_for(std::chrono::microseconds(random.Below(2000)));
  if (Has(kFork) && random.OneIn(4)) ForkOnce(random);
  StartAgain();
}

void World::StartAgain() {
  for (;;) {
    try {
      eng_->Start();
      return;
    } catch (const Error&) {  // the system refused a thread; it can be tried again
      if (!Has(kNoThreads)) log_.Complain("Start threw");
    }
  }
}

void World::SwitchPolicy(Random& random) {
  const auto policy = static_cast<Policy>(random.Below(4));
  PolicyOptions options;
  if (policy == Policy::kNaive && Has(kRaise)) options.raise_at_push = random.OneIn(2);
  eng_->SetPolicy(policy, options);
}

void World::ChaosMain() {
  Random random(seed_ * 7919 + 5);
  while (!stop_chaos_) {
    std::this_thread::sleep_for(std::chrono::microseconds(200 + random.Below(4000)));
    switch (random.Below(8)) {
      case 0:
        if (Has(kStop)) StopAndStart(random);
        break;
      case 1:
      case 2:
        if (Has(kPolicy)) SwitchPolicy(random);
        break;
      case 3:
        if (!Has(kTrace)) break;
        eng_->StartTrace();
        std::this_thread::sleep_for(std::chrono::microseconds(random.Below(1000)));
        eng_->StopTrace();
        break;
      case 4:
        if (Has(kDescribe)) eng_->DescribePending();
        break;
      case 5:
        if (Has(kFork)) ForkOnce(random);
        break;
      case 6: eng_->stats(); break;
      default: DropMail(); break;  // releases what pushers put there
    }
  }
  if (Has(kPolicy)) eng_->SetPolicy(Policy::kThreaded);
}

// The shutdown waits for a completion, which comes behind the fork. A thread of its own, because all others may wait for
// the shutdown.
void World::ForkDuringShutdown() {
  Random random(seed_ * 86028121);
  while (shutdown_begin_ == kNever) std::this_thread::sleep_for(std::chrono::microseconds(50));
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ForkOnce(random);
  if (Completion done = open_over_shutdown_->Close()) done();
}

void World::StopRacesMain() {
  Random random(seed_ * 104729 + 7);
  while (!stop_chaos_) {
    std::this_thread::sleep_for(std::chrono::microseconds(200 + random.Below(4000)));
    if (random.OneIn(2)) {
      StopAndStart(random);
    } else {
      StartAgain();
    }
  }
  StartAgain();
}

void World::ShutDownBeside() {
  const int64_t total = s_.pushers * s_.ops;
  const int64_t when = static_cast<int64_t>(Random(seed_ * 31).Below(static_cast<uint64_t>(total) + 1));
  while (pushes_ < when && !stop_chaos_) std::this_thread::sleep_for(std::chrono::microseconds(50));
  FailThreads(0);  // a Shutdown of a stopped engine needs threads
  if (open_over_shutdown_) {
    CancelScope never;
    eng_->PushAsync({.name = kOpenOverFork, .place = Io(), .cancel = &never},
                    [open = open_over_shutdown_](RunContext&, Completion done) { open->Keep(std::move(done)); });
  }
  end_begins_ = true;
  shutdown_begin_ = Tick();
  eng_->Shutdown();
  shutdown_end_ = Tick();
}

}  // namespace engine::oracle
