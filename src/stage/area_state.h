// AreaState: what is inside a StagingArea. Every call makes one or more visits: it takes the lock, changes the state,
// and at its end wakes whoever can go on, outside the lock. Only threads that sleep are woken.
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

// A sleeping thread. It is reused, and never freed before the area, so that a late notify finds it.
struct StageSleeper {
  std::condition_variable cv;
  bool woken = false;
  uint64_t ticket = 0, place = 0;  // of an item that waits for room
};
using Sleepers = std::vector<StageSleeper*>;

struct AreaState {
  explicit AreaState(StageOptions given);

  const StageOptions options;
  const std::string label;
  const uint32_t generation = ForkGeneration();
  std::shared_ptr<StagePool> pool;  // null: the stage has none
  // A hint for those who wait in the pool; the pool's lock publishes it (see StagingArea::Cancel).
  std::atomic<bool> over{false};

  StageClock& clock;
  mutable Mutex mu;
  StageBuffer buffer GUARDED_BY(mu);
  Sleepers takers GUARDED_BY(mu), beginners GUARDED_BY(mu), without_room GUARDED_BY(mu);
  Sleepers idle GUARDED_BY(mu);
  std::vector<std::unique_ptr<StageSleeper>> sleepers GUARDED_BY(mu);
  int takers_inside GUARDED_BY(mu) = 0;  // how many sleep, or were woken and have not left yet
  int producers GUARDED_BY(mu);          // how many run or were asked for
  int refused GUARDED_BY(mu) = 0;        // of these, how many never came
  Backoff backoff GUARDED_BY(mu);
  StagingArea::Time not_before GUARDED_BY(mu) = StagingArea::kNow;  // end of the pause after ignored errors
  bool Pauses() const REQUIRES(mu) { return not_before != StagingArea::kNow && clock.Now() < not_before; }
  uint64_t room_waits GUARDED_BY(mu) = 0;
  std::chrono::nanoseconds producer_wait GUARDED_BY(mu){0}, consumer_wait GUARDED_BY(mu){0};

  struct Tuning {
    Autotune tuner;
    uint64_t takes = 0;
    StagingArea::Time begin;
    std::chrono::nanoseconds producer_wait{0}, consumer_wait{0};  // what they were when the window began
  };
  std::optional<Tuning> tuning GUARDED_BY(mu);

  // One visit: holds the lock. Its end wakes the threads, and destroys the items, that are due.
  class SCOPED_CAPABILITY Visit {
   public:
    explicit Visit(AreaState& state) ACQUIRE(state.mu);
    ~Visit() RELEASE();
    Visit(const Visit&) = delete;

   private:
    AreaState& state_;
  };

  // Each producer has a sleeper from the beginning, because it could tell nobody that there was no memory for one.
  void AddSleeper() REQUIRES(mu);
  StageSleeper* NewSleeper() REQUIRES(mu);
  // Sleeps in `list` until it is woken or until `deadline`; then leaves the list.
  void Sleep(Sleepers& list, StagingArea::Time deadline) REQUIRES(mu);
  void LeavePool() {
    if (pool) pool->Leave();
  }
  void CheckFork() const;
  void Tune() REQUIRES(mu);
  std::string RoomStory(uint64_t ticket) const REQUIRES(mu);
  std::string TakeStory() const REQUIRES(mu);
};

// UsageError for options that cannot be honoured. Returns the options with a name and a clock.
StageOptions Checked(StageOptions options);
std::string StageLabel(const StageOptions& options);
// "5 s", "1 ms"
std::string Amount(std::chrono::milliseconds time);
std::string Amount(uint64_t count, const char* what);

}  // namespace engine::detail
