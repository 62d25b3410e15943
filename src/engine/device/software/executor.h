// Executor: runs the work of a software device, lane by lane. There are two: one with threads, one with a virtual
// clock.
//
// A lane runs its commands in order. A command is a kernel (or what acts like one), or a wait for a marker of another
// lane. A marker is a lane and how many of its commands must have ended: what an event stands for.
//
// Threads:   every method on any thread. Push calls for one lane are serialized by the caller.
// Ownership: lanes live as long as the executor; the caller reuses idle ones.
// Errors:    the first body that throws makes the device lost: after that nothing runs, and no wait blocks.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

#include "base/sync.h"
#include "engine/testing/software_device.h"

namespace engine::detail {

using Nanoseconds = std::chrono::nanoseconds;

struct Lane;

struct Marker {
  Lane* lane = nullptr;  // none: always reached
  uint64_t sequence = 0;
};

// A hold: its command ends only after the hold was released. Guarded by the lock of the lane's queue.
struct Hold {
  Lane* const lane;  // of the command
  bool released = false;
};

struct Command {
  std::shared_ptr<const SoftwareKernel> work = {};  // none: a wait, or nothing to run
  Marker wait = {};                                 // reached before `work` starts
  std::shared_ptr<Hold> hold = {};
  std::shared_ptr<Nanoseconds> reached_at = {};  // without work: where to note when it was reached
  Nanoseconds cost{0};
  bool observed = true;  // OnRan tells of it
};

struct Lane {
  explicit Lane(uint32_t number) : id(number) {}
  virtual ~Lane() = default;
  uint32_t id;          // as observers know it; changes when the lane is reused
  uint64_t issued = 0;  // guarded by the caller's lock
  // release: what the commands did. Partner: the acquire of whoever asks whether they ended.
  std::atomic<uint64_t> completed{0};
  bool Reached(uint64_t sequence) const noexcept { return completed.load(std::memory_order_acquire) >= sequence; }
};

inline bool Reached(const Marker& marker) noexcept { return !marker.lane || marker.lane->Reached(marker.sequence); }

class Executor {
 public:
  explicit Executor(std::shared_ptr<DeviceObserver> observer) : observer_(std::move(observer)) {}
  virtual ~Executor() = default;

  virtual Lane* AddLane(uint32_t id) = 0;
  // Behind everything on the lane. The command's sequence is lane->issued, which the caller has counted up before.
  virtual void Push(Lane* lane, Command command) = 0;
  virtual void Block(const Marker& until) = 0;  // returns when it is reached or the device is lost
  virtual void Release(Hold& hold) = 0;
  virtual void RunUntilIdle() = 0;
  virtual void Advance(Nanoseconds by) = 0;  // virtual clock: time passes
  virtual Nanoseconds Now() const = 0;

  bool lost() const noexcept { return lost_.load(std::memory_order_acquire); }
  // ok until the device is lost.
  DeviceStatus LostStatus() const {
    MutexLock lock(lost_mu_);
    return lost_status_;
  }
  // Makes the device lost, with the first failure, and wakes all waiters.
  void Lose(DeviceStatus why) {
    {
      MutexLock lock(lost_mu_);
      if (lost_status_.ok()) lost_status_ = std::move(why);
    }
    // release: the status. Partner: lost().
    lost_.store(true, std::memory_order_release);
    WakeAll();
  }

 protected:
  virtual void WakeAll() = 0;
  // Runs a body. False: it failed; the caller must call Lose(*failure) without any lock that WakeAll takes.
  bool RunBody(const SoftwareKernel& work, DeviceStatus* failure);
  std::shared_ptr<DeviceObserver> observer_;

 private:
  mutable Mutex lost_mu_;
  DeviceStatus lost_status_ GUARDED_BY(lost_mu_);
  std::atomic<bool> lost_{false};
};

// True on a thread that runs a kernel body: it may not call the device.
bool InsideKernel() noexcept;

std::unique_ptr<Executor> MakeThreadsExecutor(std::shared_ptr<DeviceObserver> observer);
std::unique_ptr<Executor> MakeVirtualExecutor(std::shared_ptr<DeviceObserver> observer, uint64_t seed);

}  // namespace engine::detail
