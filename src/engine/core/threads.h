// Threads: the threads of one engine. Each plays a worker's role, or drives the caller pool, or is idle.
//
// A worker is a role (Worker, pool.h). When the body that a thread runs waits, another thread plays the role meanwhile,
// a stand-in (lent_roles.h).
//
// Threads: any.
// Errors:  Error if no thread can be made; UsageError if more stand-ins are needed than max_spare_threads.
// Fork:    made anew in the child, without threads.
#pragma once

#include <array>
#include <memory>
#include <span>
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
  std::atomic<uint32_t> command{kIdle};  // futex word; set by whoever took the thread from idle_, reset by the thread
  Worker* role = nullptr;                // published by the store of kPlay
  std::atomic<uint32_t> drive_until{WaitNode::kPending};  // kDone ends a kDrive
  EngineThread* next_lent = nullptr;                      // in the list of a LentRoles
  // By pool: 1 + the index of the worker for which on_start has run on this thread, and on_end will; 0: none.
  std::array<int, kMaxPools> hooked{};
};

class Threads {
 public:
  explicit Threads(EngineCore& core) : core_(core) {}

  // --- roles
  void AddRoles(size_t n) { roles_.fetch_add(n, std::memory_order_relaxed); }
  void DropRoles(size_t n) { roles_.fetch_sub(n, std::memory_order_relaxed); }
  std::vector<EngineThread*> Take(size_t n) EXCLUDES(mu_);             // throws if it cannot get all of them
  void PutBack(std::span<EngineThread* const> threads) EXCLUDES(mu_);  // they are idle; JoinIdle ends them
  void Play(EngineThread& thread, Worker& role);
  void AwaitRoles();  // after the pools were stopped: returns when no thread plays a role

  // --- stand-ins
  EngineThread* TakeStandIn() EXCLUDES(mu_) { return TakeIdle(true); }
  void PlayOn(EngineThread& thread, Worker& role);  // plays a role that is lent
  EngineThread* StartDriver();                      // a thread that drives the caller pool until EndDriving
  static void EndDriving(EngineThread* driver);
  size_t spare() const EXCLUDES(mu_);  // how many threads there are beyond one for each role

  // --- ends
  void JoinIdle() EXCLUDES(mu_);
  void JoinAll() EXCLUDES(mu_);
  void DetachAll() EXCLUDES(mu_);
  bool OwnThis() const;  // whether the calling thread is one of them

  void AfterForkInChild();

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
  std::atomic<size_t> roles_{0};           // relaxed: only bounds stand-ins, and a counter shows it
  std::atomic<uint32_t> playing_{0};       // how many roles are played; futex word
};

}  // namespace engine::detail
