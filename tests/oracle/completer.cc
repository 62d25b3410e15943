#include "completer.h"

#include <algorithm>
#include <chrono>

#include "faults.h"

namespace engine::oracle {

Completer::Completer(uint64_t seed) : random_(seed), thread_(OwnThread([this] { Main(); })) {}

void Completer::Finish() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(mu_);
    over_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void Completer::Post(std::function<void()> job) {
  std::lock_guard lock(mu_);
  jobs_.push_back(std::move(job));
  changed_.notify_one();
}

bool Completer::idle() const {
  std::lock_guard lock(mu_);
  return jobs_.empty() && !busy_;
}

void Completer::Main() {
  constexpr size_t kReach = 8;  // how far from the oldest job it may pick
  std::unique_lock lock(mu_);
  for (;;) {
    changed_.wait(lock, [&] { return over_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const auto at = jobs_.begin() + static_cast<ptrdiff_t>(random_.Below(std::min(jobs_.size(), kReach)));
    std::function<void()> job = std::move(*at);
    jobs_.erase(at);
    busy_ = true;
    lock.unlock();
    if (random_.OneIn(20)) std::this_thread::sleep_for(std::chrono::microseconds(random_.Below(500)));
    job();
    job = nullptr;  // drops the last copy of a completion, without the lock
    lock.lock();
    busy_ = false;
  }
}

}  // namespace engine::oracle
