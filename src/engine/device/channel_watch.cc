// The channels' watch: a thread that never calls a device, for the one case in which the retirement thread cannot help.
//
// A launch on a stream whose queue is full waits until the device has taken some work, and on CUDA it keeps a lock
// meanwhile that every other call needs. Behind a collective whose peer never comes it waits for ever. Then the
// retirement thread is stuck in a query, and cannot see that the collective's timeout is over. So this thread only
// compares numbers. If a channel is overdue and the retirement thread has not finished a round since, it has the owner
// abort, and the device goes on. The retirement thread then fails the issued ops before anything retires (`rescued_`).
//
// Threads: its own, made with the first channel that has a timeout.
// Errors:  the same as those of the retirement thread's timeout.
#include <pthread.h>

#include <algorithm>

#include "base/make_thread.h"
#include "core/core.h"
#include "device/devices.h"

namespace engine::detail {

void Devices::StartWatch() {
  MutexLock lock(make_mu_);
  if (!stop_.load(std::memory_order_relaxed) && !watch_.joinable())
    watch_ = MakeThread("a thread that watches communicators", [this] { WatchMain(); });
}

void Devices::EndWatch() {
  watch_ends_.store(1);
  FutexWake(watch_ends_, 1);
  if (watch_.joinable()) watch_.join();
}

void Devices::WatchMain() {
  pthread_setname_np(pthread_self(), "engine/watch");
  while (watch_ends_.load() == 0) {
    auto nap = std::chrono::nanoseconds(tuning::kRetirementStuck);
    for (uint32_t i = 0; i < n_channels_.load(std::memory_order_acquire); ++i) {
      Channel& channel = channels_[i];
      std::chrono::nanoseconds timeout{0};
      const std::shared_ptr<ChannelOwner> owner = OwnerOf(channel, &timeout);
      if (!owner || timeout.count() == 0) continue;
      nap = std::min(nap, timeout);
      if (Overdue(channel, timeout)) Rescue(channel, *owner, timeout);
    }
    FutexWait(watch_ends_, 0, Clock::now() + nap);
  }
}

// Compares numbers that need no lock: the thread that has taken a lane's lock may be stuck, too.
bool Devices::Overdue(Channel& channel, std::chrono::nanoseconds timeout) {
  const DeviceLane* const on = channel.lane.load(std::memory_order_acquire);
  if (!on || channel.rescued.load()) return false;
  Channel::Watched& seen = channel.watched;
  const uint64_t retired = on->retired.load(std::memory_order_acquire), rounds = rounds_.load();
  const auto now = Clock::now();
  if (seen.oldest != retired + 1 || on->issued.load(std::memory_order_acquire) == retired) {
    seen.oldest = retired + 1;
    seen.since = now;
  }
  if (seen.rounds != rounds) {
    seen.rounds = rounds;
    seen.round_since = now;
  }
  return now - seen.since > timeout && now - seen.round_since > tuning::kRetirementStuck;
}

void Devices::Rescue(Channel& channel, ChannelOwner& owner, std::chrono::nanoseconds timeout) {
  // seq_cst, before the abort. Partner: the looks behind each query; they see it if the abort ended the work in
  // question.
  channel.rescued.store(true);
  rescued_.fetch_add(1);
  owner.Fail("an op has not ended within the timeout of " +
             std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count()) +
             " ms, and keeps the device from being asked");
  owner.Abort();
  AskOwners();
}

}  // namespace engine::detail
