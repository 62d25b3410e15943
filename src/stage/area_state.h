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
#include "base/sync.h"
#include "engine/spi/staging_area.h"
#include "pool.h"
#include "stage_buffer.h"

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
  mutable Mutex mu;
  StageBuffer buffer GUARDED_BY(mu);
  Sleepers takers GUARDED_BY(mu), beginners GUARDED_BY(mu), without_room GUARDED_BY(mu);
  Sleepers idle GUARDED_BY(mu);
  std::vector<std::unique_ptr<StageSleeper>> sleepers GUARDED_BY(mu);
  int takers_inside GUARDED_BY(mu) = 0;  // asleep, or woken and not yet gone
  int producers GUARDED_BY(mu);          // that run or were asked for
  Backoff backoff GUARDED_BY(mu);
  StagingArea::Time not_before GUARDED_BY(mu) = StagingArea::kNow;  // pause after ignored errors
  uint64_t room_waits GUARDED_BY(mu) = 0;
  std::chrono::nanoseconds producer_wait GUARDED_BY(mu){0}, consumer_wait GUARDED_BY(mu){0};

  struct Tuning {
    Autotune tuner;
    uint64_t takes = 0;
    StagingArea::Time begin;
    std::chrono::nanoseconds producer_wait{0}, consumer_wait{0};  // when the window began
  };
  std::optional<Tuning> tuning GUARDED_BY(mu);

  // One visit: holds the lock; its end wakes and destroys what is due.
  class SCOPED_CAPABILITY Visit {
   public:
    explicit Visit(AreaState& state) ACQUIRE(state.mu);
    ~Visit() RELEASE();
    Visit(const Visit&) = delete;

   private:
    AreaState& state_;
  };

  StageSleeper* NewSleeper() REQUIRES(mu);
  // Sleeps in `list` until woken or until `deadline`; leaves the list.
  void Sleep(Sleepers& list, StagingArea::Time deadline) REQUIRES(mu);
  void LeavePool() {
    if (pool) pool->Leave();
  }
  void CheckFork() const;
  void Tune() REQUIRES(mu);
  std::string RoomStory(uint64_t ticket) const REQUIRES(mu);
  std::string TakeStory() const REQUIRES(mu);
};

// Throws UsageError for what cannot be honoured; returns the options with a name and a clock.
StageOptions Checked(StageOptions options);
std::string StageLabel(const StageOptions& options);
// "5 s", "1 ms"
std::string Amount(std::chrono::milliseconds time);
std::string Amount(uint64_t count, const char* what);

}  // namespace engine::detail
