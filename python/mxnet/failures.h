// Failures: MXNet's meaning of errors. An op whose input carries a failure is skipped, and what it would have changed carries
// the same failure; whoever waits takes the exception, and with it the failure is gone from every Var that carries it.
//
// The engine's own errors stay where they are until they are cleared, which MXNet's programs do not do; so functions of MXNet
// never fail in the engine: what they throw is kept here.
//
// Threads:   all methods, on any thread. As long as nothing has failed, an op costs one load of `live_`.
// Ownership: a Failure is shared by the Vars that carry it and by the list of those that nobody has taken.
// Errors:    what was never taken, or was cleared beside another one, is counted and stays in the log.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "abi.h"
#include "engine/engine.h"

namespace engine_mxnet {

struct Failure {
  std::exception_ptr exception;
  const char* op;                     // the name of the op that threw
  std::atomic<bool> live = true;      // nobody has taken it
  std::atomic<uint64_t> skipped = 0;  // ops that passed it on
};
using FailurePtr = std::shared_ptr<Failure>;

// Var: a variable of MXNet: a Var of the engine, and the failure that it carries.
struct Var final : abi::Var {
  explicit Var(::engine::Engine& engine) : var(engine.NewVar({}, this)) {}
  Var() noexcept = default;  // made after the engine was shut down
  size_t version() override { return var.version(); }

  const ::engine::Var var;  // its tag is this object
  std::atomic<bool> failed =
      false;              // relaxed: who waits for the Var, or runs behind its op, is ordered behind the store
  FailurePtr failure;     // under Failures::mu_
  abi::SyncFn on_delete;  // written by the last push that names the Var
  abi::Context delete_context;
};

class Failures {
 public:
  struct Entry {  // of the log
    std::string op;
    std::string what;
    uint64_t skipped;
    bool taken;  // by a wait
  };
  struct Counts {
    uint64_t failed = 0;    // functions that threw
    uint64_t skipped = 0;   // ops that were skipped because of them
    uint64_t dropped = 0;   // failures that a WaitForAll cleared beside the one that it threw
    uint64_t unlisted = 0;  // failures beyond those that WaitForAll keeps whole
  };

  // Whether any Var may carry a failure. relaxed: who depends on the op that failed is ordered behind it.
  static bool any() noexcept { return live_.load(std::memory_order_relaxed) != 0; }

  FailurePtr Add(std::exception_ptr exception, const char* op);
  // The failure that an op inherits from the Vars that it names; null: none, it runs.
  FailurePtr Inherited(const ::engine::RunContext& ctx);
  // Lets `vars` carry it, if nobody has taken it meanwhile.
  void Mark(std::span<Var* const> vars, const FailurePtr& failure);
  void CountSkip(Failure& failure);

  // Takes what the Var carries; null: nothing, or somebody was faster.
  std::exception_ptr Take(Var& var);
  // Takes all, and hands over the first.
  std::exception_ptr TakeAll();

  Counts counts() const;
  std::vector<Entry> log() const;

 private:
  bool TakeIt(Failure& failure);
  void Prune();

  static constexpr size_t kMostListed = 64;
  static inline constinit std::atomic<uint64_t> live_ = 0;  // there is one object: AllFailures()
  mutable std::mutex mu_;
  std::deque<FailurePtr> listed_;  // what WaitForAll will take, in the order in which it happened
  std::deque<FailurePtr> log_;     // the last ones, taken or not
  Counts counts_;
};

// The failures of the process's MXNet.
Failures& AllFailures();

// What the op that runs changes.
std::vector<Var*> ChangedBy(const ::engine::RunContext& ctx);

}  // namespace engine_mxnet
