// Pools: the pools of one engine, and whether threads play the roles of their workers. The default pool, the caller
// pool and the named pools exist from the start; the pools of I/O, copies, devices and channels are made on first use.
//
// Threads: any. Only making a pool, Start and Stop take the lock.
// Errors:  UsageError for a placement or a name that the engine does not have; Error if no thread can be made. Nothing
//          has changed then.
// Fork:    made anew in the child, which starts the threads on first use. If the parent's engine was stopped, so is the
//          child's.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "base/fork.h"
#include "sched/pool.h"

namespace engine::detail {

class EngineCore;

inline constexpr uint8_t kDefaultPool = 0;
inline constexpr uint8_t kCallerPool = 1;  // has no workers: for policies naive and inline, and for workers = 0
inline constexpr uint8_t kIoPool = 2;
inline constexpr uint8_t kFirstNamedPool = 3;
// The last pools are those of devices: one for each channel, then one for each device, then two copy pools a device.
inline constexpr uint8_t kFirstCopyPool = kMaxPools - 2 * kMaxDevices;
inline constexpr uint8_t kFirstDevicePool = kFirstCopyPool - kMaxDevices;
inline constexpr uint8_t kFirstChannelPool = kFirstDevicePool - kMaxChannels;
static_assert(kMaxPools - kFirstChannelPool <= 64);  // bits of on_device_

class Pools {
 public:
  explicit Pools(EngineCore& core, bool stopped = true);

  class Pool& at(uint8_t index) const { return *at_[index].load(std::memory_order_acquire); }
  // Where ops without a placement go under policies that use workers: the caller pool if the engine has no workers.
  uint8_t default_pool() const { return default_pool_; }
  uint8_t Index(const Placement& place) {
    if (place.kind == Placement::Kind::kDefault) [[likely]]
      return default_pool_;
    return PlacedIndex(place);
  }
  bool OnDevice(uint8_t index) const {
    return index >= kFirstChannelPool &&
           (on_device_.load(std::memory_order_relaxed) >> (index - kFirstChannelPool) & 1);
  }
  Placement Named(std::string_view name) const;
  template <class F>
  void ForEach(F&& f) const {
    for (const auto& p : at_)
      if (class Pool* pool = p.load(std::memory_order_acquire)) f(*pool);
  }

  void Start() EXCLUDES(mu_);
  bool Stop() EXCLUDES(mu_);       // false: the pools are stopped already
  void StartLost() EXCLUDES(mu_);  // in a fork's child: makes new threads, unless the pools are stopped
  // relaxed: a call that overlaps a Stop may see either state.
  bool stopped() const { return stopped_.load(std::memory_order_relaxed); }

  void AfterForkInChild() { Renew(*this, core_, stopped()); }

 private:
  bool Has(uint8_t index) const { return at_[index].load(std::memory_order_acquire) != nullptr; }
  uint8_t PlacedIndex(const Placement& place) EXCLUDES(mu_);
  uint8_t MakeDevicePool(uint8_t index, const char* name, uint16_t number) EXCLUDES(mu_);
  void MakePool(uint8_t index, PoolOptions options) EXCLUDES(mu_);
  class Pool* Make(uint8_t index, PoolOptions options, int intra_op_threads) REQUIRES(mu_);
  void StartRoles() REQUIRES(mu_);
  void StartIf(bool stopped_now) EXCLUDES(mu_);
  void TryMakePool(uint8_t index, PoolOptions options) REQUIRES(mu_);

  std::atomic<bool> stopped_;  // changed under mu_
  const uint8_t default_pool_;
  uint8_t end_of_named_;
  // A bit for each pool from kFirstChannelPool on: its ops are issued to a device. Set before the pool is made.
  std::atomic<uint64_t> on_device_{0};
  std::array<std::atomic<class Pool*>, kMaxPools> at_{};
  EngineCore& core_;
  mutable Mutex mu_;
  std::vector<std::unique_ptr<class Pool>> made_ GUARDED_BY(mu_);
};

}  // namespace engine::detail
