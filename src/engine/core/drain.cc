// WaitAll: epochs.
//
// Each op carries the parity of the epoch that it was pushed in, and is counted by its pusher's slot and by its
// completer's. WaitAll needs all epochs up to the present one to be over. It waits for the one before, if that still
// runs, then flips: later pushes fall into the next epoch and cannot hold it up. At most two epochs are alive, so a
// parity is enough. A push that read the epoch just before a flip may be counted under its parity after that parity was
// seen drained. It overlaps that WaitAll, so either is right there; a later one waits for both parities before it flips.
// Concurrent calls share flips.
//
// Most calls end without any of this: where nothing at all is pending within a spin, all pushes up to now are over.
//
// Lost wakes: a waiter announces the parity in draining_, HeavyFence(), sums. A completer counts, LightFence(), looks
// at draining_. It tells the waiter when the op that it runs next is not of that epoch, a worker also when its queue is
// empty, and before it sleeps; an op of the epoch that is still to run on some worker will tell later itself. So a
// waiter is woken for a run of ops, and not for each of them.
#include "core/lent_roles.h"
#include "sched/pool.h"

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
  chains_.ReleaseAll();
  if (!AllOverSoon(deadline)) {
    RefuseWaitInHook();
    LentRoles lent;
    if (t_frame && !closed()) lent.Lend(*this);  // inside an op of another engine
    const bool in_time = WaitForEpochs(deadline);
    PassOnDriving();
    if (!in_time) return false;
  }
  if (!report) return true;
  ErrorRecord* const error = errors_.TakeUnseen();
  if (!error) return true;
  error->Retain();
  try {
    Throw(error);
  } catch (const std::bad_alloc&) {  // not shown: the next call reports it
    errors_.Add(error);
    error->Release();
    throw;
  } catch (...) {
    error->Release();
    throw;
  }
}

// Whether nothing is pending, within a spin: then no epoch has to end, and no completer is asked to tell.
bool EngineCore::AllOverSoon(Clock::time_point deadline) {
  const bool may_spin = !caller_pool_used_.load(std::memory_order_relaxed) &&
                        !(has_devices_.load(std::memory_order_relaxed) && devices_->Busy());
  const auto over = [this] { return Drained(0) && Drained(1); };
  return SpinUntil(over, may_spin ? options_.spin : std::chrono::nanoseconds{0}, spin_places_, deadline);
}

bool EngineCore::WaitForEpochs(Clock::time_point deadline) {
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
      if (moved) NoteDrain();
      if (drained_before_ > upto) return true;
      awaited = drained_before_ & 1;
    }
    chains_.ReleaseAll();  // behind the HeavyFence: a chain that is appended to later sees draining_
    if (has_devices_.load(std::memory_order_relaxed) && devices_->Busy()) devices_->Kick();
    if (DriveOne(&ran)) {
      while (ran == awaited && DriveOne(&ran)) {  // nothing can be over before these are
      }
      continue;
    }
    // seq_cst, before the sleep looks at the word. Partner: NoteDrain, which changes the word before it looks at the count.
    drain_sleepers_.fetch_add(1);
    const bool in_time = SleepListed({&drain_seq_, true}, seq, deadline, !t_frame);
    drain_sleepers_.fetch_sub(1, std::memory_order_relaxed);
    if (!in_time) return false;
  }
}

void EngineCore::NoteDrain() {
  // seq_cst. Partner: the sleeper's count in WaitAll.
  drain_seq_.fetch_add(1);
  if (drain_sleepers_.load()) FutexWake(drain_seq_, kEveryone);  // mutant: dropped_drain_note
}

void EngineCore::TellDrain(Worker& worker, const OpRecord* next) {
  const uint8_t untold = std::exchange(worker.untold, 0);
  if (untold && !(next && 1u + next->extra.epoch == untold)) NoteDrain();  // mutant: untold_drain
}

}  // namespace engine::detail
