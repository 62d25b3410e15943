// DropIn: MXNet's engine, as MXNet sees it, on ours.
//
//   reads of MXNet are reads, what it changes is an update; its functions run as ops under their names (op.h);
//   errors mean what they mean to MXNet (failures.h);
//   bulks need nothing: ops of a bulk are pushed one by one, which costs less here than a bulk does there, and keeps their
//   names, errors and order; the size is remembered and handed back;
//   priorities, any int, become the engine's five levels in the same order;
//   prioritized ops, and those of cpu(1), cpu(2) ... have pools of their own, as they have threads of their own in MXNet.
//
// Threads:   every method on any thread.
// Ownership: MXNet owns it and deletes it while its static objects die. From NotifyShutdown on only deletions run, on the thread
//            that asks for them: once it has returned nothing of ours touches MXNet.
// Errors:    methods throw what MXNet's C API hands on: whatever a function threw, or an error of the engine.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <vector>

#include "abi.h"
#include "engine/engine.h"
#include "library.h"
#include "op.h"

namespace engine_mxnet {

class DropIn final : public abi::Engine {
 public:
  // `naive`: each push runs its function before it returns, and throws what that throws.
  explicit DropIn(bool naive);
  ~DropIn() noexcept(false) override;

  void NotifyShutdown() override;
  void Stop() override;
  void Start() override;
  abi::Var* NewVariable() override;
  abi::Opr* NewOperator(abi::AsyncFn fn, const abi::Vars& reads, const abi::Vars& updates, abi::Property property,
                        const char* name, bool wait) override;
  void DeleteOperator(abi::Opr* op) override;
  void Push(abi::Opr* op, abi::Context context, int priority, bool profiling) override;
  void PushAsync(abi::AsyncFn fn, abi::Context context, const abi::Vars& reads, const abi::Vars& updates,
                 abi::Property property, int priority, const char* name, bool wait) override;
  void DeleteVariable(abi::SyncFn fn, abi::Context context, abi::Var* var) override;
  void WaitForVar(abi::Var* var) override;
  void WaitForAll() override;
  void Throw(abi::Var* var) override;
  void PushSync(abi::SyncFn fn, abi::Context context, const abi::Vars& reads, const abi::Vars& updates,
                abi::Property property, int priority, const char* name) override;
  int bulk_size() const override;
  int set_bulk_size(int size) override;

  ::engine::Engine& engine() noexcept { return engine_; }
  Failures& failures() noexcept { return ledger_.failures; }
  // How long a fork and the end wait for what was pushed.
  void set_drain_timeout(std::chrono::milliseconds timeout) noexcept { drain_timeout_ = timeout; }

  // Before a fork: all that was pushed has ended, and no worker runs. After it, in both processes: goes on.
  void BeforeFork();
  void AfterFork();

 private:
  int LevelOf(int priority);
  // Whether an op needs no SpecialBody and no placement.
  bool IsPlain(abi::Context context, abi::Property property, bool wait) const;
  template <class Fn>
  void PushFunction(Fn&& fn, abi::Context context, const abi::Vars& reads, const abi::Vars& updates,
                    abi::Property property, int priority, ::engine::Name name, bool wait);
  // Any op: `desc` has its name, its sets and its level.
  template <class Fn>
  void PushSpecial(::engine::OpDesc& desc, Fn&& fn, abi::Context context, abi::Property property, bool wait);
  void CountNested();
  // Whether all that was pushed has ended. If not, within a time longer than any step takes, it says what has not.
  bool Drained(const char* before);
  // Whether a push is to be forgotten, because MXNet is ending.
  bool Refused() const noexcept { return ledger_.ending.load(std::memory_order_relaxed); }

  // Takes back what NotifyShutdown has added to g_ending, once our own engine is gone.
  struct Ending {
    bool counted = false;
    ~Ending() {
      if (counted) g_ending.fetch_sub(1, std::memory_order_relaxed);
    }
  } ending_;
  const std::unique_ptr<::engine::Engine> own_;  // null: the host's
  Ledger& ledger_;
  ::engine::Engine& engine_;
  const Library library_;
  const bool naive_;
  std::atomic<int> lowest_ = 0, highest_ = 0;  // of the priorities that were asked for
  // Longer than any step takes, shorter than patience: a function that waits for the thread that forks, or ends, never ends.
  std::chrono::milliseconds drain_timeout_{30'000};
  ::engine::Placement prioritized_;
  std::vector<::engine::Placement> devices_;  // of cpu(1), cpu(2) ...
};

}  // namespace engine_mxnet
