#include "idle_bulks.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <system_error>
#include <thread>

#include "engine/bulk.h"
#include "engine/testing/bulk_clock.h"

namespace engine::bulk {
namespace {

// Never destroyed: its thread runs until the process ends.
std::atomic<IdleBulks*> g_idle_bulks{nullptr};
// Made when the library is loaded, because a fork while it is being made would leave the static's guard locked in the
// child.
[[maybe_unused]] const IdleBulks& g_idle_bulks_made_early = IdleBulks::Get();

}  // namespace

IdleBulks& IdleBulks::Get() {
  static const bool made = [] {
    g_idle_bulks.store(new IdleBulks, std::memory_order_release);
    // The child has one thread, and a thread that is gone may have locked the old IdleBulks: so the child gets a new one.
    return pthread_atfork(nullptr, nullptr, [] { g_idle_bulks.store(new IdleBulks, std::memory_order_release); }) == 0;
  }();
  (void)made;
  return *g_idle_bulks.load(std::memory_order_acquire);
}

bool IdleBulks::Watch(std::shared_ptr<Watched> bulk) noexcept try {
  std::lock_guard lock(mu_);
  watched_.push_back(std::move(bulk));
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

void IdleBulks::Unwatch(const Watched* bulk) noexcept {
  std::lock_guard lock(mu_);
  std::erase_if(watched_, [&](const auto& w) { return w.get() == bulk; });
}

// If no thread can be made, `asleep_` stays true, so the next opening of a bulk tries again.
bool IdleBulks::Wake() {
  std::lock_guard lock(mu_);
  if (!by_hand_ && !started_) {
    // The program's own threads are to get its signals.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      std::thread([this] { Main(); }).detach();
      started_ = true;
    } catch (const std::system_error&) {  // the system refused a thread
    } catch (const std::bad_alloc&) {     // no memory for one
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (!started_) return false;
  }
  asleep_.store(false, std::memory_order_relaxed);
  if (!by_hand_) changed_.notify_one();
  return true;
}

bool IdleBulks::AnyOpen() const {
  return std::any_of(watched_.begin(), watched_.end(), [](const auto& w) {
    const uint64_t mark = w->mark.load(std::memory_order_seq_cst);
    return (mark & 1) && mark != w->seen + 1;  // seen + 1: Tick has released it already
  });
}

// `seen` is the mark (odd) of a bulk that was open at the last tick, or that mark minus one (even) once Tick has
// released the bulk.
bool IdleBulks::Tick() {
  std::vector<std::shared_ptr<Watched>> silent;
  bool open = false;
  {
    std::lock_guard lock(mu_);
    for (const auto& bulk : watched_) {
      const uint64_t mark = bulk->mark.load(std::memory_order_relaxed);
      if (!(mark & 1) || mark == bulk->seen + 1) continue;
      open = true;
      if (mark != bulk->seen) {
        bulk->seen = mark;
        continue;  // mutant: idle_bulk_released_early
      }
      try {
        silent.push_back(bulk);
      } catch (const std::bad_alloc&) {  // the next tick tries again
        break;
      }
      bulk->seen = mark - 1;
    }
  }
  for (const auto& bulk : silent) bulk->ops.Release();  // mutant: idle_bulk_never_released
  return open;
}

void IdleBulks::Main() {
  pthread_setname_np(pthread_self(), "engine-bulk");
  std::unique_lock lock(mu_);
  for (;;) {
    lock.unlock();
    const bool open = Tick();
    lock.lock();
    if (!open || by_hand_) {
      // seq_cst, then a look at the marks. Partner: Opened.
      asleep_.store(true, std::memory_order_seq_cst);
      if (by_hand_ || !AnyOpen()) changed_.wait(lock, [&] { return !asleep_.load() && !by_hand_; });
      asleep_.store(false, std::memory_order_relaxed);
    }
    const auto next = std::chrono::steady_clock::now() + std::chrono::milliseconds(1);
    changed_.wait_until(lock, next, [&] { return by_hand_; });
  }
}

void IdleBulks::ByHand(bool by_hand) {
  std::lock_guard lock(mu_);
  by_hand_ = by_hand;
  asleep_.store(true, std::memory_order_seq_cst);  // the next opening wakes the thread
  changed_.notify_one();
}

}  // namespace engine::bulk

namespace engine {

ManualBulkClock::ManualBulkClock() { bulk::IdleBulks::Get().ByHand(true); }
ManualBulkClock::~ManualBulkClock() { bulk::IdleBulks::Get().ByHand(false); }
bool ManualBulkClock::Tick() { return bulk::IdleBulks::Get().Tick(); }

}  // namespace engine
