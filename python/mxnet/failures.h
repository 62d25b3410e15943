// Failures: MXNet's meaning of errors. An op whose input carries a failure is skipped, and what it would have changed carries
// the same failure; whoever waits takes the exception, and with it the failure is gone from every Var that carries it.
//
// The engine's own errors stay where they are until they are cleared, which MXNet's programs do not do; so functions of MXNet
// never fail in the engine: what they throw is kept here.
//
// Threads:   all methods, on any thread. As long as nothing has failed, an op costs one load of `all_live_`.
// Ownership: each engine of MXNet has its own Failures. A Failure is shared by the Vars that carry it and by the lists here.
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

class Failures;

struct Failure {
  const std::exception_ptr exception;
  const char* const op;   // the name of the op that threw
  const uint64_t number;  // how many failures its engine has seen before it
  uint64_t skipped = 0;   // ops that passed it on; this and `taken` under Failures::mu_
  bool taken = false;     // by a wait for a Var; a WaitForAll takes all below a number
};
using FailurePtr = std::shared_ptr<Failure>;

// What the ops of an engine of MXNet leave for its waits.
struct Ledger;

// Var: a variable of MXNet: a Var of the engine, and the failure that it carries.
struct Var final : abi::Var {
  Var(::engine::Engine& engine, Ledger& its) : var(engine.NewVar({}, this)), ledger(&its) {}
  Var() noexcept = default;  // made after the engine was shut down
  size_t version() override { return var.version(); }

  const ::engine::Var var;         // its tag is this object
  Ledger* const ledger = nullptr;  // of its engine; null: made after that was shut down
  std::atomic<bool> failed =
      false;  // relaxed: who waits for the Var, or runs behind its op, is ordered behind the store
  std::atomic<bool> scratch = false;  // of a space of scratch memory. relaxed: who misses it waits for others in vain
  FailurePtr failure;                 // under Failures::mu_
  abi::SyncFn on_delete;              // written by the last push that names the Var
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
    uint64_t unlisted = 0;  // failures beyond those that WaitForAll can throw; it clears them like the others
  };

  // Whether any Var of any engine may carry a failure. relaxed: who depends on the op that failed is ordered behind it.
  static bool any() noexcept { return all_live_.load(std::memory_order_relaxed) != 0; }

  FailurePtr Add(std::exception_ptr exception, const char* op);
  // The failure that an op inherits from the Vars that it names; null: none, it runs.
  FailurePtr Inherited(const ::engine::RunContext& ctx);
  // Lets `vars` carry it, if nobody has taken it meanwhile.
  void Mark(std::span<Var* const> vars, const FailurePtr& failure);
  void CountSkip(Failure& failure);

  // Takes what the Var carries; null: nothing, or somebody was faster.
  std::exception_ptr Take(Var& var);
  // Takes all, however many, and hands over the first.
  std::exception_ptr TakeAll();

  Counts counts() const;
  std::vector<Entry> log() const;

 private:
  bool Live(const Failure& failure) const { return !failure.taken && failure.number >= cleared_; }
  bool TakeIt(Failure& failure);

  static constexpr size_t kMostListed = 64;
  static inline constinit std::atomic<uint64_t> all_live_ = 0;  // the sum of live_ over all engines
  mutable std::mutex mu_;
  uint64_t live_ = 0;              // failures that nobody has taken, also those that nobody can reach any more
  uint64_t cleared_ = 0;           // a WaitForAll has taken the failures with lower numbers
  std::deque<FailurePtr> listed_;  // what WaitForAll can throw, in the order in which it happened
  std::deque<FailurePtr> log_;     // the last ones, taken or not
  Counts counts_;
};

struct Ledger {
  Failures failures;
  std::atomic<uint64_t> nested =
      0;  // pushes of functions that ran, and functions that another thread ended: WaitForAll
          // waits for what they have pushed, too. relaxed: seen by who saw the op end
  // Only deletions run from now on. relaxed: whether one more function runs does not matter.
  std::atomic<bool> ending = false;
};

// Never destroyed, because functions may end while the process does.
Ledger& NewLedger();
// The one of MXNet on the host's engine.
Ledger& HostLedger();

// What the op that runs changes.
std::vector<Var*> ChangedBy(const ::engine::RunContext& ctx);

}  // namespace engine_mxnet
