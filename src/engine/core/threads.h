// Threads: the operating-system threads of one engine. Each plays a worker's role, drives the caller pool, or is idle.
//
// A worker is a role (Worker, pool.h). When the body that a thread runs waits, the role goes to a stand-in (lent_roles.h).
//
// Threads: any.
// Errors:  Error where no thread can be made; UsageError where more stand-ins are wanted than max_spare_threads.
// Fork:    the child has none of them: made anew.
#pragma once

#include <array>
#include <memory>
#include <thread>
#include <vector>

#include "base/engine_limits.h"
#include "core/caller_pool.h"

namespace engine::detail {

struct Worker;

struct EngineThread {
  enum : uint32_t { kIdle, kPlay, kDrive, kExit };
  EngineCore* core = nullptr;
  std::thread thread;
  std::atomic<uint32_t> command{kIdle};  // futex word; written by whoever took the thread from idle_, then by it
  Worker* role = nullptr;                // published by the release of kPlay
  std::atomic<uint32_t> drive_until{WaitNode::kPending};  // kDone ends a kDrive
  EngineThread* next_lent = nullptr;                      // in the list of the wait that it drives for
  std::array<int, kMaxPools> hooked{};  // by pool whose on_start has run on it: 1 + the index of the worker, for on_end
};

class Threads {
 public:
  explicit Threads(EngineCore& core) : core_(core) {}

  // --- roles
  void AddRoles(size_t n) { roles_.fetch_add(n, std::memory_order_relaxed); }
  void DropRoles(size_t n) { roles_.fetch_sub(n, std::memory_order_relaxed); }
  std::vector<EngineThread*> Take(size_t n) EXCLUDES(mu_);  // so many, or none: then throws
  void PutBack(const std::vector<EngineThread*>& threads) EXCLUDES(mu_);
  void Play(EngineThread& thread, Worker& role);
  void AwaitRoles();  // until nobody plays one; the pools have been stopped

  // --- stand-ins
  EngineThread* TakeStandIn() EXCLUDES(mu_) { return TakeIdle(true); }
  void PlayOn(EngineThread& thread, Worker& role);  // a role that is lent
  EngineThread* StartDriver();                      // drives the caller pool until EndDriving
  static void EndDriving(EngineThread* driver);     // null: nothing
  size_t spare() const EXCLUDES(mu_);               // threads beyond one for each role

  // --- ends
  void JoinIdle() EXCLUDES(mu_);
  void JoinAll() EXCLUDES(mu_);
  void DetachAll() EXCLUDES(mu_);
  bool OwnThis() const;  // the calling thread is one of them

  void AfterForkInChild() { Renew(*this, core_); }

 private:
  EngineThread* TakeIdle(bool stand_in) EXCLUDES(mu_);
  static void Command(EngineThread& thread, uint32_t command, Worker* role);
  void Main(EngineThread& thread);
  bool PlayRole(EngineThread& thread, Worker& worker);  // worker_loop.cc

  EngineCore& core_;
  mutable Mutex mu_;
  std::vector<std::unique_ptr<EngineThread>> threads_ GUARDED_BY(mu_);
  std::vector<EngineThread*> idle_ GUARDED_BY(mu_);
  std::atomic<uint32_t> idle_changed_{0};  // futex word
  std::atomic<size_t> roles_{0};           // relaxed: a bound on stand-ins, and a statistic
  std::atomic<uint32_t> playing_{0};       // roles that are played; futex word
};

}  // namespace engine::detail
