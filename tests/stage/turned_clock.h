// TurnedClock: a clock of stages that stands still until the test turns it.
#pragma once

#include <algorithm>
#include <vector>

#include "engine/testing/stage_clock.h"

namespace engine::test {

class TurnedClock final : public StageClock {
 public:
  Time Now() override {
    std::lock_guard lock(mu_);
    return now_;
  }
  void WaitUntil(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, Time until) override {
    const Waiter me{&changed, lock.mutex(), until};
    {
      std::lock_guard own(mu_);
      if (until <= now_) return;
      waiters_.push_back(me);
      came_.notify_all();
    }
    changed.wait(lock);
    std::lock_guard own(mu_);
    const auto mine = std::find(waiters_.begin(), waiters_.end(), me);
    if (mine != waiters_.end()) waiters_.erase(mine);
  }
  void Turn(std::chrono::nanoseconds by) {
    std::vector<Waiter> due;
    {
      std::lock_guard lock(mu_);
      now_ += by;
      std::copy_if(waiters_.begin(), waiters_.end(), std::back_inserter(due), [&](const Waiter& w) { return Due(w); });
      std::erase_if(waiters_, [&](const Waiter& w) { return Due(w); });
    }
    for (const Waiter& waiter : due) {
      std::lock_guard theirs(*waiter.mu);
      waiter.changed->notify_all();
    }
  }
  // How long from now the first of those that wait for it has to wait. Returns once one does.
  std::chrono::nanoseconds Next() {
    std::unique_lock lock(mu_);
    came_.wait(lock, [&] { return !waiters_.empty(); });
    Time first = Time::max();
    for (const Waiter& waiter : waiters_) first = std::min(first, waiter.until);
    return first - now_;
  }

 private:
  struct Waiter {
    std::condition_variable* changed;
    std::mutex* mu;
    Time until;
    bool operator==(const Waiter&) const = default;
  };
  bool Due(const Waiter& waiter) const { return waiter.until <= now_; }

  std::mutex mu_;
  std::condition_variable came_;
  Time now_{};
  std::vector<Waiter> waiters_;
};

}  // namespace engine::test
