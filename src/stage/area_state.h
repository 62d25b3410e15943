// AreaState: what is inside a StagingArea. Every call is one or more visits; when a visit ends, whoever can go on is woken,
// outside the lock. Nobody is woken who does not sleep.
#pragma once

#include <condition_variable>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "autotune.h"
#include "backoff.h"
#include "engine/spi/staging_area.h"
#include "pool.h"
#include "stage_buffer.h"
#include "sync.h"

namespace engine::detail {

// A sleeping thread. Reused, never freed before the area, so that a late notify finds it.
struct StageSleeper {
  std::condition_variable cv;
  bool woken = false;
  uint64_t ticket = 0, place = 0;  // of the item that waits for room
};
using Sleepers = std::vector<StageSleeper*>;

struct AreaState {
  explicit AreaState(StageOptions given);

  const StageOptions options;
  const std::string label;
  const uint32_t generation = ForkGeneration();
  std::shared_ptr<StagePool> pool;  // null: none
  // A hint for those who wait in the pool; the lock of the pool carries it (see Cancel).
  std::atomic<bool> over{false};

  StageClock& clock;
  mutable StageMutex mu;
  StageBuffer buffer STAGE_TSA(guarded_by(mu));
  Sleepers takers STAGE_TSA(guarded_by(mu)), beginners STAGE_TSA(guarded_by(mu)),
      without_room STAGE_TSA(guarded_by(mu));
  Sleepers idle STAGE_TSA(guarded_by(mu));
  std::vector<std::unique_ptr<StageSleeper>> sleepers STAGE_TSA(guarded_by(mu));
  int takers_inside STAGE_TSA(guarded_by(mu)) = 0;  // asleep, or woken and not yet gone
  int producers STAGE_TSA(guarded_by(mu));          // that run or were asked for
  Backoff backoff STAGE_TSA(guarded_by(mu));
  StagingArea::Time not_before STAGE_TSA(guarded_by(mu)) = StagingArea::kNow;  // pause after ignored errors
  uint64_t room_waits STAGE_TSA(guarded_by(mu)) = 0;
  std::chrono::nanoseconds producer_wait STAGE_TSA(guarded_by(mu)){0}, consumer_wait STAGE_TSA(guarded_by(mu)){0};

  struct Tuning {
    Autotune tuner;
    uint64_t takes = 0;
    StagingArea::Time begin;
    std::chrono::nanoseconds producer_wait{0}, consumer_wait{0};  // when the window began
  };
  std::optional<Tuning> tuning STAGE_TSA(guarded_by(mu));

  // One visit: holds the lock; its end wakes and destroys what is due.
  class STAGE_TSA(scoped_lockable) Visit {
   public:
    explicit Visit(AreaState& state) STAGE_TSA(acquire_capability(state.mu));
    ~Visit() STAGE_TSA(release_capability());
    Visit(const Visit&) = delete;
    std::unique_lock<std::mutex>& native() { return lock_; }

   private:
    AreaState& state_;
    std::unique_lock<std::mutex> lock_;
  };

  StageSleeper* NewSleeper() STAGE_TSA(requires_capability(mu));
  // Sleeps in `list` until woken or until `deadline`; leaves the list.
  void Sleep(Visit& visit, Sleepers& list, StagingArea::Time deadline) STAGE_TSA(requires_capability(mu));
  void LeavePool() {
    if (pool) pool->Leave();
  }
  void CheckFork() const;
  void Tune() STAGE_TSA(requires_capability(mu));
  std::string RoomStory(uint64_t ticket) const STAGE_TSA(requires_capability(mu));
  std::string TakeStory() const STAGE_TSA(requires_capability(mu));
};

// Throws UsageError for what cannot be honoured; returns the options with a name and a clock.
StageOptions Checked(StageOptions options);
std::string StageLabel(const StageOptions& options);
// "5 s", "1 ms"
std::string Amount(std::chrono::milliseconds time);
std::string Amount(uint64_t count, const char* what);

}  // namespace engine::detail
