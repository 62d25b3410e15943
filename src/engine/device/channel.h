// Channel: a lane that has an issuing thread and an owner of its own. The owner is a communicator, whose work on the
// device may never end if other ranks do not come. The devices only know that an owner can fail by itself, and that it
// can abort its work.
//
//   open ──► the owner's Failure returns an error ──► FailIssued: the ops that have not ended fail, and those behind them
//                                                 ──► the owner's Abort: the device ends the work that is left
//   open or failed ──► closed by the owner, behind its last op, or with the engine ──► used by the next owner
//
// Threads:   the retirement thread calls Failure and Abort, so nothing retires in between. If that thread is stuck in a
//            call of the device that only an abort can end, the channels' watch (channel_watch.cc) calls Fail and Abort
//            instead, and nothing retires before the retirement thread has failed the issued ops.
// Ownership: Devices own channels and share owners. A closed channel keeps its lane and its pool.
// Order:     Devices::channels_mu_, then a lane's mu; nothing is called under it.
#pragma once

#include <exception>
#include <memory>
#include <string>

#include "device/lane.h"

namespace engine::detail {

class ChannelOwner {
 public:
  virtual ~ChannelOwner() = default;
  // The error that the library has found, or null. Does not block.
  virtual std::exception_ptr Failure() noexcept = 0;
  // From now on Failure returns `why`, unless it has an error already. The caller wakes the retirement thread.
  virtual void Fail(const std::string& why) noexcept = 0;
  // Makes the work on the lane end soon, whatever it waits for. May be called several times.
  virtual void Abort() noexcept = 0;
  // Called at the engine's end: nothing is pending, graphs are destroyed, streams still exist. False: call it again
  // after the other owners' Close.
  virtual bool Close() noexcept = 0;
};

struct Channel {
  uint32_t index = 0;
  DeviceState* device = nullptr;        // written before Devices::n_channels_ publishes the channel
  std::atomic<DeviceLane*> lane{};      // made on first use; release and acquire as DeviceState::compute
  std::shared_ptr<ChannelOwner> owner;  // under channels_mu_; null: free
  std::chrono::nanoseconds timeout{0};  // under channels_mu_
  bool aborted = false;                 // under channels_mu_
  std::atomic<bool> rescued{false};     // the watch has aborted it, and its issued ops have not failed yet
  // Used by the retirement thread: the oldest pending number that it has seen, and since when.
  uint64_t oldest = 0;
  Clock::time_point oldest_since{};
  struct Watched {  // used by the watch: the same, and how many rounds the retirement thread had made
    uint64_t oldest = 0, rounds = 0;
    Clock::time_point since{}, round_since{};
  } watched;
};

}  // namespace engine::detail
