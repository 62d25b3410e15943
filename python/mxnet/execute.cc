// Inside ops: running functions of MXNet.
#include <optional>

#include "completion.h"
#include "here.h"
#include "library.h"
#include "op.h"

namespace engine_mxnet {
namespace {

Ledger& LedgerOf(const ::engine::RunContext& ctx, const Special& special) {
  return special.ledger ? *special.ledger : *static_cast<Var*>(ctx.vars().front().var.tag())->ledger;
}

// Whether the op is to be left out: it inherits a failure, or MXNet ends.
[[gnu::noinline]] bool LeftOut(const ::engine::RunContext& ctx, const Special& special) {
  Ledger& ledger = LedgerOf(ctx, special);
  if (FailurePtr inherited = ledger.failures.Inherited(ctx)) {
    if (!special.always) {
      ledger.failures.CountSkip(*inherited);
      ledger.failures.Mark(ChangedBy(ctx), inherited);
      return true;
    }
  }
  return ledger.ending.load(std::memory_order_relaxed);
}

// A NoSkip op passes on what it inherited, unless its function took that.
[[gnu::noinline]] void PassOn(const ::engine::RunContext& ctx, const Special& special) {
  Failures& failures = LedgerOf(ctx, special).failures;
  if (const FailurePtr inherited = failures.Inherited(ctx)) failures.Mark(ChangedBy(ctx), inherited);
}

[[gnu::noinline]] void Threw(const ::engine::RunContext& ctx, const Special& special) {
  if (special.naive) {
    special.naive->thrown = std::current_exception();
  } else {
    Failures& failures = LedgerOf(ctx, special).failures;
    failures.Mark(ChangedBy(ctx), failures.Add(std::current_exception(), ctx.name()));
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
    PassOn(ctx, special);
}

// Another thread has ended an op, and may have pushed others before.
void CountNested(Ledger& ledger) { ledger.nested.fetch_add(1, std::memory_order_relaxed); }

// The function has returned without having called back: the op ends when it does.
[[gnu::noinline]] std::function<void(std::exception_ptr)> SettleOf(::engine::RunContext& ctx, const Special& special,
                                                                   std::optional<::engine::Completion>& deferred) {
  deferred = ctx.Defer();
  return
      [name = ctx.name(), naive = special.naive ? special.naive->shared_from_this() : nullptr, changed = ChangedBy(ctx),
       ledger = &LedgerOf(ctx, special), done = *deferred](std::exception_ptr thrown) mutable {
        if (naive) {
          naive->thrown = std::move(thrown);
          naive->ended.store(true, std::memory_order_release);
        } else if (thrown) {
          ledger->failures.Mark(changed, ledger->failures.Add(std::move(thrown), name));
        }
        CountNested(*ledger);
        done();
      };
}

template <class Fn>
void ExecuteSync(::engine::RunContext& ctx, const Special& special, const Fn& fn) {
  Guarded(ctx, special, [&] { fn({.context = special.context}); });
  if (special.naive) special.naive->ended.store(true, std::memory_order_release);
}

template <class Fn>
void ExecuteAsync(::engine::RunContext& ctx, const Special& special, const Fn& fn) {
  bool over = true, elsewhere = false;
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
    over = call->Returned(error, elsewhere, [&] { return SettleOf(ctx, special, done); });
    if (error) [[unlikely]]
      std::rethrow_exception(error);
  });
  if (!over) return;
  if (elsewhere) [[unlikely]]
    CountNested(LedgerOf(ctx, special));
  if (special.naive) special.naive->ended.store(true, std::memory_order_release);
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
    const Inside inside;
    var->on_delete({.context = var->delete_context});
  } catch (...) {
    if (var->ledger) var->ledger->failures.Add(std::current_exception(), "DeleteVariable");
  }
}

}  // namespace engine_mxnet
