// Op: functions of MXNet as bodies of ops of the engine.
//
// The thread that pushes an op writes its body and another one reads it, line by line of the cache; so the body of an ordinary
// op is its function and nothing else. What a failure needs beside it, the op's Vars, the engine knows, and they know their
// ledger. Only an op without Vars carries its ledger itself.
//
// Threads:   a body runs once, on the engine's threads.
// Ownership: a body owns its function; the engine destroys the body on the thread that ran or skipped it, and the function goes back
//            to a thread that pushes (returns.h). A reusable operator shares its function with its ops.
// Errors:    a body throws nothing: failures.h has what its function threw.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <vector>

#include "abi.h"
#include "engine/engine.h"
#include "failures.h"
#include "returns.h"

namespace engine_mxnet {

// Engines that were told that MXNet ends: their ops look into their ledger. relaxed: whether one more function runs does
// not matter.
inline constinit std::atomic<int> g_ending = 0;

// What a push of the naive engine waits for. The push may leave it behind: what other ops throw comes out of it, too.
struct NaivePush : std::enable_shared_from_this<NaivePush> {
  std::atomic<bool> ended = false;  // release: publishes `thrown`. Partner: the acquire in PushSpecial
  std::exception_ptr thrown;
};

// What only few ops have.
struct Special {
  abi::Context context = {};   // another device than cpu(0)
  bool always = false;         // kNoSkip and waits: runs although an input carries a failure
  NaivePush* naive = nullptr;  // of the naive engine: who takes the failure
  Ledger* ledger = nullptr;    // of an op without Vars
};

using SharedFn = std::shared_ptr<const abi::AsyncFn>;  // of a reusable operator

// Run the function, unless the op inherits a failure. What it throws, or its callback says, is the op's failure.
void Execute(::engine::RunContext& ctx, const Special& special, const abi::SyncFn& fn);
void Execute(::engine::RunContext& ctx, const Special& special, const abi::SyncCFn& fn);
void Execute(::engine::RunContext& ctx, const Special& special, const abi::AsyncFn& fn);
void Execute(::engine::RunContext& ctx, const Special& special, const abi::AsyncCFn& fn);
inline void Execute(::engine::RunContext& ctx, const Special& special, const SharedFn& fn) {
  Execute(ctx, special, *fn);
}

template <class Fn>
void Execute(::engine::RunContext& ctx, const Special& special, const Returning<Fn>& fn) {
  Execute(ctx, special, *fn);
}

template <class Fn>
struct PlainBody {
  Fn fn;
  void operator()(::engine::RunContext& ctx) { Execute(ctx, {}, fn); }
};
template <class Fn>
struct VarlessBody {
  Ledger* ledger;
  Fn fn;
  void operator()(::engine::RunContext& ctx) { Execute(ctx, {.ledger = ledger}, fn); }
};
template <class Fn>
struct SpecialBody {
  std::shared_ptr<NaivePush> kept;  // what special.naive names
  Special special;
  Fn fn;
  void operator()(::engine::RunContext& ctx) { Execute(ctx, special, fn); }
};

// A reusable operator of MXNet.
struct Operator {
  SharedFn fn;
  abi::Property property;
  ::engine::Name name;
  bool is_wait;
  std::vector<::engine::VarRef> refs;  // reads, then updates
  size_t reads;
  ::engine::Operator plain;  // for pushes that need a PlainBody only
};

// Behind all ops of its Var: runs the function that MXNet gave for that, and frees the Var.
struct DeleteBody {
  Var* var;
  void operator()(::engine::RunContext&) { Delete(var); }
  static void Delete(Var* var);
};

}  // namespace engine_mxnet
