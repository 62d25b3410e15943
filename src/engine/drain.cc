// WaitAll: epochs.
//
// Each op carries the parity of the epoch that it was pushed in, and is counted by its pusher's slot and by its
// completer's. WaitAll needs all epochs up to the present one to be over. It waits for the one before, if that still
// runs, then flips: later pushes fall into the next epoch and cannot hold it up. At most two epochs are alive, so a
// parity is enough. A push that read the epoch just before a flip may be counted under its parity after that parity was
// seen drained. It overlaps that WaitAll, so either is right there; a later one waits for both parities before it flips.
// Concurrent calls share flips.
//
// Lost wakes: a waiter announces the parity in draining_, HeavyFence(), sums. A completer counts, LightFence(), looks
// at draining_. It tells the waiter when the op that it runs next is not of that epoch, and before it sleeps; an op
// of the epoch that is still to run on some worker will tell later itself.
#include "core.h"

namespace engine::detail {

bool EngineCore::Drained(uint8_t parity) {
  MutexLock lock(slots_mu_);
  uint64_t completed = 0, pushed = 0;
  for (const auto& s : slots_) completed += s->completed[parity].Read();
  for (const auto& s : slots_) pushed += s->pushed[parity].Read();
  return completed == pushed;  // counts only grow: equal now means that all was done when `completed` was summed
}

bool EngineCore::WaitAll(Clock::time_point deadline, bool report) {
  for (const RunFrame* f = t_frame; f; f = f->outer)
    if (f->core == this)
      throw UsageError("WaitAll inside op '" + std::string(f->op->extra.name) + "' would wait for itself");
  const Hold hold(this);
  uint64_t upto;
  {
    MutexLock lock(drain_mu_);
    upto = epoch_number_;
  }
  for (;;) {
    uint8_t awaited, ran;  // parities
    const uint32_t seq = drain_seq_.load(std::memory_order_acquire);
    {
      MutexLock lock(drain_mu_);
      bool moved = false;
      for (;;) {
        if (drained_before_ > upto) break;
        if (drained_before_ == epoch_number_) {
          // Nothing older runs, but for stragglers counted late under the parity that comes next: they go first.
          const uint8_t next = (epoch_number_ + 1) & 1;
          draining_.store(1u + next, std::memory_order_relaxed);
          HeavyFence();
          if (!Drained(next)) break;
          ++epoch_number_;  // flip, and wait for what was the present
          epoch_.store(epoch_number_ & 1, std::memory_order_relaxed);
          draining_.store(1 + (drained_before_ & 1), std::memory_order_relaxed);
          HeavyFence();
        }
        if (!Drained(drained_before_ & 1)) break;
        ++drained_before_;
        draining_.store(0, std::memory_order_relaxed);
        moved = true;
      }
      if (moved) {
        drain_seq_.fetch_add(1, std::memory_order_release);
        FutexWake(drain_seq_, kEveryone);
      }
      if (drained_before_ > upto) break;
      awaited = drained_before_ & 1;
    }
    ReleaseAllChains();  // behind the HeavyFence: a chain that is appended to later sees draining_
    if (has_devices_.load(std::memory_order_relaxed) && devices_->Busy()) devices_->Kick();
    if (DriveOne(&ran)) {
      while (ran == awaited && DriveOne(&ran)) {  // nothing can be over before these are
      }
      continue;
    }
    if (!SleepListed({&drain_seq_, true}, seq, deadline, true)) return false;
  }
  if (!report) return true;
  if (ErrorRecord* error = errors_.TakeUnseen()) {
    const OpError shown = error->Show();
    error->Release();
    throw shown;
  }
  return true;
}

void EngineCore::NoteDrain() {
  drain_seq_.fetch_add(1, std::memory_order_release);
  FutexWake(drain_seq_, kEveryone);
}

}  // namespace engine::detail
