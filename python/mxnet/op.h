// Op: a function of MXNet in the engine: what runs it, and the list of its variables, which its failure needs.
//
// Threads:   an op's body runs once, on the engine's threads.
// Ownership: a body owns its function; the engine destroys both on the thread that ran or skipped it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "abi.h"
#include "engine/engine.h"
#include "failures.h"

namespace engine_mxnet {

class DropIn;

// The variables of an op: those that it reads, then those that it changes. Up to kInline of them lie in the op itself.
template <size_t kInline>
class VarList {
 public:
  VarList(const abi::Vars& reads, const abi::Vars& updates)
      : reads_(static_cast<uint32_t>(reads.size())), all_(static_cast<uint32_t>(reads.size() + updates.size())) {
    if (all_ > kInline) more_ = std::make_unique<Var*[]>(all_);
    Var** to = all_ > kInline ? more_.get() : few_.data();
    for (abi::Var* var : reads) *to++ = static_cast<Var*>(var);
    for (abi::Var* var : updates) *to++ = static_cast<Var*>(var);
  }
  VarList(VarList&&) noexcept = default;

  std::span<Var* const> all() const noexcept { return {more_ ? more_.get() : few_.data(), all_}; }
  std::span<Var* const> reads() const noexcept { return all().first(reads_); }
  std::span<Var* const> updates() const noexcept { return all().subspan(reads_); }

 private:
  uint32_t reads_, all_;
  std::array<Var*, kInline> few_;
  std::unique_ptr<Var*[]> more_;
};

// What a push of the naive engine waits for. Lies on the pusher's stack.
struct NaivePush {
  bool ended = false;  // both: written by the op, read when it has ended
  std::exception_ptr thrown;
};

// What each op of MXNet knows.
struct OpHead {
  DropIn* engine;
  abi::Context context;
  bool always;                 // kNoSkip and waits: run although an input carries a failure
  NaivePush* naive = nullptr;  // of the naive engine only: who takes the failure
};

template <size_t kInline>
struct SyncBody {
  OpHead head;
  VarList<kInline> vars;
  abi::SyncFn fn;
  void operator()(::engine::RunContext& ctx);
};

template <size_t kInline>
struct AsyncBody {
  OpHead head;
  VarList<kInline> vars;
  abi::AsyncFn fn;
  void operator()(::engine::RunContext& ctx);
};

// What a reusable operator of MXNet keeps. Each push that has not ended yet, and MXNet itself, counts.
struct Operator {
  Operator(abi::AsyncFn function, const abi::Vars& reads, const abi::Vars& updates, abi::Property kind,
           ::engine::Name called, bool wait)
      : fn(std::move(function)), vars(reads, updates), property(kind), name(called), is_wait(wait) {
    for (Var* var : vars.all()) refs.push_back(var->var);
  }
  const abi::AsyncFn fn;
  const VarList<0> vars;
  const abi::Property property;
  const ::engine::Name name;
  const bool is_wait;
  std::vector<::engine::VarRef> refs;  // as the engine wants them: reads, then updates
  std::atomic<uint32_t> count = 1;

  void Release() {
    // acq_rel: all uses of the function come before its end.
    if (count.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
};

struct OperatorRelease {
  void operator()(Operator* op) const { op->Release(); }
};

struct OperatorBody {
  OpHead head;
  std::unique_ptr<Operator, OperatorRelease> op;
  void operator()(::engine::RunContext& ctx);
};

// Behind all ops of its Var: runs the function that MXNet gave for that, and frees the Var.
struct DeleteBody {
  DropIn* engine;
  Var* var;
  void operator()(::engine::RunContext& ctx);
};

}  // namespace engine_mxnet
