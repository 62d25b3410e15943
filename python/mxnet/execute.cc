// Inside ops: running functions of MXNet.
#include <optional>

#include "completion.h"
#include "here.h"
#include "library.h"
#include "op.h"

namespace engine_mxnet {
namespace {

struct Inside {
  explicit Inside(Here& here) : here_(here) { ++here_.depth; }
  ~Inside() { --here_.depth; }
  Here& here_;
};

// Whether the op is to be left out: it inherits a failure, or MXNet ends.
[[gnu::noinline]] bool LeftOut(const ::engine::RunContext& ctx, const Special& special) {
  if (FailurePtr inherited = AllFailures().Inherited(ctx)) {
    if (!special.always) {
      AllFailures().CountSkip(*inherited);
      AllFailures().Mark(ChangedBy(ctx), inherited);
      return true;
    }
  }
  return g_ending.load(std::memory_order_relaxed) != 0;
}

// A NoSkip op passes on what it inherited, unless its function took that.
[[gnu::noinline]] void PassOn(const ::engine::RunContext& ctx) {
  if (const FailurePtr inherited = AllFailures().Inherited(ctx)) AllFailures().Mark(ChangedBy(ctx), inherited);
}

[[gnu::noinline]] void Threw(const ::engine::RunContext& ctx, const Special& special) {
  if (special.naive) {
    special.naive->thrown = std::current_exception();
  } else {
    AllFailures().Mark(ChangedBy(ctx), AllFailures().Add(std::current_exception(), ctx.name()));
  }
}

template <class Run>
void Guarded(::engine::RunContext& ctx, const Special& special, Run&& run) {
  Here& here = t_here;
  if (!here.started && ctx.worker() >= 0) [[unlikely]] {
    StartWorkerThread();
    here.started = true;
  }
  const bool unusual = Failures::any() || g_ending.load(std::memory_order_relaxed);
  if (unusual && LeftOut(ctx, special)) [[unlikely]]
    return;
  try {
    const Inside inside(here);
    run();
  } catch (...) {
    return Threw(ctx, special);
  }
  if (unusual && special.always) [[unlikely]]
    PassOn(ctx);
}

// The function has returned without having called back: the op ends when it does.
[[gnu::noinline]] std::function<void(std::exception_ptr)> SettleOf(::engine::RunContext& ctx, const Special& special,
                                                                   std::optional<::engine::Completion>& deferred) {
  deferred = ctx.Defer();
  return [name = ctx.name(), naive = special.naive, changed = ChangedBy(ctx),
          done = *deferred](std::exception_ptr thrown) mutable {
    if (naive) {
      naive->thrown = std::move(thrown);
      naive->ended = true;
    } else if (thrown) {
      AllFailures().Mark(changed, AllFailures().Add(std::move(thrown), name));
    }
    done();
  };
}

template <class Fn>
void ExecuteSync(::engine::RunContext& ctx, const Special& special, const Fn& fn) {
  Guarded(ctx, special, [&] { fn({.context = special.context}); });
  if (special.naive) special.naive->ended = true;
}

template <class Fn>
void ExecuteAsync(::engine::RunContext& ctx, const Special& special, const Fn& fn) {
  bool over = true;
  std::optional<::engine::Completion> done;  // where the function has not called back when it returns
  Guarded(ctx, special, [&] {
    Call* const call = Call::Take();
    try {
      fn({.context = special.context}, call->callback());
    } catch (...) {
      call->Threw();
      throw;
    }
    std::exception_ptr error;
    over = call->Returned(error, [&] { return SettleOf(ctx, special, done); });
    if (error) [[unlikely]]
      std::rethrow_exception(error);
  });
  if (!over) return;
  if (special.naive) special.naive->ended = true;
  if (done) [[unlikely]]
    (*done)();  // it called back while we looked
}

}  // namespace

void Execute(::engine::RunContext& ctx, const Special& special, const abi::SyncFn& fn) {
  ExecuteSync(ctx, special, fn);
}
void Execute(::engine::RunContext& ctx, const Special& special, const abi::SyncCFn& fn) {
  ExecuteSync(ctx, special, fn);
}
void Execute(::engine::RunContext& ctx, const Special& special, const abi::AsyncFn& fn) {
  ExecuteAsync(ctx, special, fn);
}
void Execute(::engine::RunContext& ctx, const Special& special, const abi::AsyncCFn& fn) {
  ExecuteAsync(ctx, special, fn);
}

void DeleteBody::Delete(Var* var) {
  const std::unique_ptr<Var> gone(var);
  try {
    const Inside inside(t_here);
    var->on_delete({.context = var->delete_context});
  } catch (...) {
    AllFailures().Add(std::current_exception(), "DeleteVariable");
  }
}

}  // namespace engine_mxnet
