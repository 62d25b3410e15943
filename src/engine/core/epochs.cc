#include "core/epochs.h"

#include "base/asymmetric_fence.h"
#include "core/slots.h"

namespace engine::detail {

uint64_t Epochs::present() const {
  MutexLock lock(mu_);
  return present_;
}

bool Epochs::Over(uint64_t last, uint8_t* awaited) {
  MutexLock lock(mu_);
  bool moved = false;
  while (over_ <= last) {
    if (over_ == present_) {
      // No older epoch runs. But a push may have counted itself late under the parity that the flip brings back: wait
      // for those ops first.
      const uint8_t next = (present_ + 1) & 1;
      awaited_.store(1u + next, std::memory_order_relaxed);
      HeavyFence();
      if (!slots_.Drained(next)) break;
      ++present_;  // the flip: from here on we wait for the epoch that was present
      parity_.store(present_ & 1, std::memory_order_relaxed);
      awaited_.store(1 + (over_ & 1), std::memory_order_relaxed);
      HeavyFence();
    }
    if (!slots_.Drained(over_ & 1)) break;
    ++over_;
    awaited_.store(0, std::memory_order_relaxed);
    moved = true;
  }
  if (moved) Note();
  *awaited = over_ & 1;
  return over_ > last;
}

// The lock in Drained publishes what this completer has counted, and shows it what all counted that were there before.
void Epochs::NoteIfOver(uint8_t parity) {
  if (slots_.Drained(parity)) Note();
}

void Epochs::Note() {
  // seq_cst: changed before the look at the count. Partner: Sleep.
  changes_.fetch_add(1);
  if (sleepers_.load()) FutexWake(changes_, kEveryone);  // mutant: dropped_drain_note
}

}  // namespace engine::detail
