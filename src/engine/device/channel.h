// Channel: a lane with an issuing thread and an owner of its own: a communicator, whose work on the device may never end
// without others. The core knows no more of it than that it can fail by itself, and can be made to end.
//
//   open ──► the owner's Failure says something ──► FailIssued: what had not ended fails, and what needs it
//                                               ──► the owner's Abort: the device ends what is left
//   open or failed ──► closed by the owner, behind its last op, or with the engine ──► taken by the next owner
//
// Threads:   failures are asked for, and Abort is called, by the retirement thread: nothing retires in between. Where that thread is
//            stuck in a call of the device's, which only an abort can end, the channels' watch calls Fail and Abort instead
//            (channel_watch.cc), and nothing retires before the retirement thread has failed what was issued.
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
  // What is wrong; null: nothing. Looks at what the library has found out, and blocks for nobody.
  virtual std::exception_ptr Failure() noexcept = 0;
  // From now on Failure says `why`, unless it says something already. The caller wakes the retirement thread.
  virtual void Fail(const std::string& why) noexcept = 0;
  // What is on the lane ends soon, whatever it waits for. May be called again.
  virtual void Abort() noexcept = 0;
  // The engine goes: nothing is pending, graphs are gone, streams are not. False: to be asked again, when the others have been.
  virtual bool Close() noexcept = 0;
};

struct Channel {
  uint32_t index = 0;
  DeviceState* device = nullptr;        // written before it is published, in Devices::n_channels_
  std::atomic<DeviceLane*> lane{};      // as DeviceState::compute
  std::shared_ptr<ChannelOwner> owner;  // by channels_mu_; null: free
  std::chrono::nanoseconds timeout{0};  // by channels_mu_
  bool aborted = false;                 // by channels_mu_
  std::atomic<bool> rescued{false};     // by the watch: aborted, and what was issued is still to fail
  uint64_t oldest = 0;                  // retirement thread: what it has seen as the oldest pending number, since
  Clock::time_point oldest_since{};
  struct Watched {  // the watch: the same, and how far the retirement thread was
    uint64_t oldest = 0, rounds = 0;
    Clock::time_point since{}, round_since{};
  } watched;
};

}  // namespace engine::detail
