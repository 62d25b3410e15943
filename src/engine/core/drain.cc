// WaitAll. If nothing is pending within a spin, all earlier pushes have ended; most calls return then. The others wait
// for epochs (epochs.h).
#include "core/core.h"
#include "core/lent_roles.h"
#include "sched/pool.h"

namespace engine::detail {

bool EngineCore::WaitAll(Clock::time_point deadline, bool report) {
  for (const BodyFrame* f = t_frame; f; f = f->outer)
    if (f->core == this)
      throw UsageError("WaitAll inside op '" + std::string(f->op->extra.name) +
                       "' would wait for itself: wait for single Vars there");
  const KeepAlive alive(this);
  chains_.ReleaseAll();
  if (!AllOverSoon(deadline)) {  // mutant: drain_waits_for_nothing
    RefuseWaitInHook();
    LentRoles lent;
    if (t_frame && !closed()) {  // this thread is inside an op of another engine
      try {
        lent.Lend(*this);
      } catch (...) {
        // A shutdown has begun, and goes on: the worker stays blocked, as it is by any body that blocks.
        if (report) throw;  // mutant: drain_needs_a_stand_in
      }
    }
    const TracedWait traced(WaitCause::kAll);
    const bool in_time = WaitForEpochs(deadline, t_frame ? &lent : nullptr);
    if (ThreadSlot* const slot = t_frame ? nullptr : slots_.MineOrNull(); slot && slot->drain_note)
      DeliverDrainNote(*slot, nullptr);  // mutant: driver_keeps_its_note
    caller_pool_.PassOn();
    if (!in_time) return false;
  }
  if (!report) return true;  // mutant: drain_shows_errors
  ErrorRecord* const error = errors_.TakeUnseen();
  if (!error) return true;
  error->Retain();
  try {
    Throw(error);
  } catch (const std::bad_alloc&) {  // the error was not thrown: the next call reports it
    errors_.PutBack(error);
    error->Release();
    throw;
  } catch (...) {
    error->Release();
    throw;
  }
}

// Spins until nothing is pending. True: no epoch has to end, and no completer has to notify anybody.
bool EngineCore::AllOverSoon(Clock::time_point deadline) {
  const bool may_spin = !caller_pool_.used() && !(has_devices_.load(std::memory_order_relaxed) && devices_->Busy());
  const auto over = [this] { return slots_.Drained(0) && slots_.Drained(1); };
  return SpinUntil(over, may_spin ? options_.spin : std::chrono::nanoseconds{0}, spin_places_, deadline);
}

bool EngineCore::WaitForEpochs(Clock::time_point deadline, LentRoles* inside) {
  const uint64_t last = epochs_.present();
  const uint32_t forks = Forks();
  for (;;) {
    uint8_t awaited, ran;  // epoch parities
    const uint32_t seen = epochs_.word();
    if (epochs_.Over(last, &awaited)) return true;
    chains_.ReleaseAll();  // behind the HeavyFence in Over: a push into a chain after this sees that we wait
    PollBusyFaster();
    if (DriveOne(&ran)) {
      if (Forks() != forks) [[unlikely]]  // in the child, where nothing is pending
        return true;
      while (ran == awaited && DriveOne(&ran)) {  // the epoch cannot be over before these ops are
      }
      continue;
    }
    if (inside && pool(kCallerPool).HasReady() && inside->AddDriver(*this)) continue;
    const auto sleep = [&](std::atomic<uint32_t>& word) {
      return caller_pool_.Sleep({&word, true}, seen, deadline, !inside || inside->MayAddDriver(*this));
    };
    if (!epochs_.Sleep(sleep)) return false;
  }
}

bool EngineCore::PollBusyFaster() {
  const bool busy = has_devices_.load(std::memory_order_relaxed) && devices_->Busy();
  if (busy) devices_->PollFaster();
  return busy;
}

void EngineCore::AskDevices() {
  if (has_devices_.load(std::memory_order_relaxed) && devices_->Busy()) devices_->AskOwners();
}

void EngineCore::DeliverDrainNote(ThreadSlot& slot, const OpRecord* next) {
  const uint8_t note = std::exchange(slot.drain_note, 0);
  if (note && !(next && 1u + next->extra.epoch == note)) epochs_.NoteIfOver(note - 1);  // mutant: drain_note_kept_back
}

void EngineCore::NoteIdle() {
  if (admission_.Waiters()) admission_.Wake();
  epochs_.NoteIfAwaitedIsOver();
}

}  // namespace engine::detail
