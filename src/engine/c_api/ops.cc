// Ops in the C API: pushing, operators, held ops, completions, and what a body asks.
#include "c_api/description.h"
#include "engine/bulk.h"
#include "engine/device/cuda_stream.h"

namespace engine::capi {
namespace {

// ---- closures

// The C bodies inside which this thread is, innermost first.
struct CBodyFrame;
thread_local constinit CBodyFrame* t_body = nullptr;
struct CBodyFrame {
  explicit CBodyFrame(EngineHandle its_engine) noexcept : engine(its_engine), outer(t_body) { t_body = this; }
  CBodyFrame(const CBodyFrame&) = delete;
  ~CBodyFrame() { t_body = outer; }
  EngineHandle engine;
  CBodyFrame* outer;
};

struct SyncClosure {
  using Function = EngineSyncFn;
  EngineHandle engine;
  EngineSyncFn fn;
  Param param;

  void operator()(RunContext& run) {
    const CBodyFrame frame(engine);
    EngineContext context{run};
    if (const int32_t code = fn(&context, param.get())) throw BodyError(code, context.error);
  }
};

struct AsyncClosure {
  using Function = EngineAsyncFn;
  EngineHandle engine;
  EngineAsyncFn fn;
  Param param;

  void operator()(RunContext& run, Completion done) {
    const CBodyFrame frame(engine);
    EngineContext context{run};
    const auto handle = NewHandle<EngineCompletion>(std::move(done));
    try {
      fn(&context, handle, param.get());
    } catch (...) {
      HandleKind<EngineCompletion>::table.Release(ToBits(handle));  // the reference that the body got
      throw;
    }
  }
};

// Takes the parameter, checks the call, and calls `submit(engine, description, closure)`. If anything is refused, the
// closure is destroyed here, and the parameter with it, before the text of the error is stored.
template <class Closure, class Submit>
EngineStatus Pushing(const char* function, EngineHandle engine, const EngineOpDesc* op, typename Closure::Function fn,
                     void* param, EngineDeleter deleter, Submit&& submit) noexcept {
  return ToStatus(function, [&]() -> EngineStatus {
    Closure closure{engine, fn, {param, deleter}};
    Engine& live = Live(engine);
    Description description(op);
    if (!fn) throw UsageError(description.Where() + "the function is null; pass a function");
    return submit(live, description, closure);
  });
}

void OrThrow(DeviceStatus status) {
  if (!status.ok()) throw DeviceError(std::move(status));
}

template <class Closure>
EngineStatus ClaimedUnless(bool accepted, Closure& closure) noexcept {
  if (accepted) return ENGINE_OK;
  closure.param.Disown();
  return ENGINE_WOULD_BLOCK;
}

// Ends an op through its completion, and gives up the caller's reference in any case.
template <class End>
EngineStatus Ending(const char* function, EngineCompletion handle, End&& end) noexcept {
  auto& table = HandleKind<EngineCompletion>::table;
  return ToStatus(function, [&] {
    // A reference of our own, because another thread may use the same handle by mistake.
    CompletionSlot* slot = table.Retain(ToBits(handle));
    if (!slot) {
      if (!handle) RefuseHandle(handle, "completion");
      throw CompletionError(std::string(function) +
                            ": the completion was used up already, or never was one; call it once");
    }
    struct GiveUp {
      HandleTable<CompletionSlot, 5>& table;
      uint64_t bits;
      ~GiveUp() {
        table.Release(bits);
        table.Release(bits);
      }
    } give_up{table, ToBits(handle)};
    // relaxed: only the first caller calls the Completion, and that orders the op's results.
    if (slot->ended.exchange(true, std::memory_order_relaxed)) {
      throw CompletionError(std::string(function) + ": the completion was called already; call it once");
    }
    end(slot->done);
  });
}

}  // namespace

bool InsideBodyOf(EngineHandle engine) noexcept {
  for (const CBodyFrame* frame = t_body; frame; frame = frame->outer) {
    if (frame->engine == engine) return true;
  }
  return false;
}

void ReleaseHeldOps(EngineHandle engine) {
  auto& table = HandleKind<EngineHeld>::table;
  table.ForEach([&](uint64_t handle, const HeldSlot& slot) {
    if (slot.engine.load(std::memory_order_acquire) == ToBits(engine)) table.Release(handle);
  });
}

}  // namespace engine::capi

using namespace engine::capi;  // NOLINT: this file defines its C face
using engine::UsageError;

// ---- pushes

EngineStatus EnginePush(EngineHandle engine, const EngineOpDesc* op, EngineSyncFn fn, void* param,
                        EngineDeleter deleter) {
  return Pushing<SyncClosure>(__func__, engine, op, fn, param, deleter, [](auto& live, auto& d, auto& closure) {
    live.Push(d.desc(), std::move(closure), d.site());
    return ENGINE_OK;
  });
}

EngineStatus EnginePushAsync(EngineHandle engine, const EngineOpDesc* op, EngineAsyncFn fn, void* param,
                             EngineDeleter deleter) {
  return Pushing<AsyncClosure>(__func__, engine, op, fn, param, deleter, [](auto& live, auto& d, auto& closure) {
    live.PushAsync(d.desc(), std::move(closure), d.site());
    return ENGINE_OK;
  });
}

EngineStatus EngineTryPush(EngineHandle engine, const EngineOpDesc* op, EngineSyncFn fn, void* param,
                           EngineDeleter deleter) {
  return Pushing<SyncClosure>(__func__, engine, op, fn, param, deleter, [](auto& live, auto& d, auto& closure) {
    return ClaimedUnless(live.TryPush(d.desc(), std::move(closure), d.site()), closure);
  });
}

EngineStatus EngineTryPushAsync(EngineHandle engine, const EngineOpDesc* op, EngineAsyncFn fn, void* param,
                                EngineDeleter deleter) {
  return Pushing<AsyncClosure>(__func__, engine, op, fn, param, deleter, [](auto& live, auto& d, auto& closure) {
    return ClaimedUnless(live.TryPushAsync(d.desc(), std::move(closure), d.site()), closure);
  });
}

EngineStatus EnginePushHeld(EngineHandle engine, const EngineOpDesc* op, EngineSyncFn fn, void* param,
                            EngineDeleter deleter, EngineHeld* held) {
  return Pushing<SyncClosure>(__func__, engine, op, fn, param, deleter, [=](auto& live, auto& d, auto& closure) {
    EngineHeld& result = Required(held, "the result");
    const auto handle = NewHandle<EngineHeld>();  // made first, so that nothing can fail after the op was pushed
    try {
      HeldSlot& slot = Live(handle);
      slot.op = live.PushHeld(d.desc(), std::move(closure), d.site());
      slot.engine.store(ToBits(engine), std::memory_order_release);
    } catch (...) {
      FreeHandle(handle);
      throw;
    }
    result = handle;
    return ENGINE_OK;
  });
}

EngineStatus EngineHeldRelease(EngineHeld held) { return Free(__func__, held); }

// ---- graphs: the same ops, recorded

EngineStatus EngineGraphPush(EngineGraph graph, const EngineOpDesc* op, EngineSyncFn fn, void* param,
                             EngineDeleter deleter) {
  const GraphSlot* slot = HandleKind<EngineGraph>::table.Peek(ToBits(graph));
  return Pushing<SyncClosure>(__func__, slot ? slot->engine : nullptr, op, fn, param, deleter,
                              [=](auto&, auto& d, auto& closure) {
                                engine::Capture(Live(graph).graph).Push(d.desc(), std::move(closure), d.site());
                                return ENGINE_OK;
                              });
}

EngineStatus EngineGraphPushAsync(EngineGraph graph, const EngineOpDesc* op, EngineAsyncFn fn, void* param,
                                  EngineDeleter deleter) {
  const GraphSlot* slot = HandleKind<EngineGraph>::table.Peek(ToBits(graph));
  return Pushing<AsyncClosure>(__func__, slot ? slot->engine : nullptr, op, fn, param, deleter,
                               [=](auto&, auto& d, auto& closure) {
                                 engine::Capture(Live(graph).graph).PushAsync(d.desc(), std::move(closure), d.site());
                                 return ENGINE_OK;
                               });
}

// ---- operators

EngineStatus EngineOperatorNew(EngineHandle engine, const EngineOpDesc* op, EngineSyncFn fn, void* param,
                               EngineDeleter deleter, EngineOperator* result) {
  return Pushing<SyncClosure>(__func__, engine, op, fn, param, deleter, [=](auto& live, auto& d, auto& closure) {
    EngineOperator& handle = Required(result, "the result");
    handle = NewHandle<EngineOperator>(live.NewOperator(d.desc(), std::move(closure), d.site()));
    return ENGINE_OK;
  });
}

EngineStatus EngineOperatorNewAsync(EngineHandle engine, const EngineOpDesc* op, EngineAsyncFn fn, void* param,
                                    EngineDeleter deleter, EngineOperator* result) {
  return Pushing<AsyncClosure>(__func__, engine, op, fn, param, deleter, [=](auto& live, auto& d, auto& closure) {
    EngineOperator& handle = Required(result, "the result");
    handle = NewHandle<EngineOperator>(live.NewAsyncOperator(d.desc(), std::move(closure), d.site()));
    return ENGINE_OK;
  });
}

EngineStatus EngineOperatorPush(EngineHandle engine, EngineOperator op, EngineSite site) {
  return ToStatus(__func__, [&] { Live(engine).Push(Live(op), ToSite(site)); });
}

EngineStatus EngineOperatorPushPriority(EngineHandle engine, EngineOperator op, int32_t priority, EngineSite site) {
  return ToStatus(__func__, [&] { Live(engine).Push(Live(op), priority, ToSite(site)); });
}

EngineStatus EngineOperatorFree(EngineOperator op) { return Free(__func__, op); }

EngineStatus EngineSetBulkSize(EngineHandle engine, int32_t size, int32_t* previous) {
  return ToStatus(__func__, [&] {
    const int before = engine::SetBulkSize(Live(engine), size);
    if (previous) *previous = before;
  });
}

// ---- inside a body

EngineStatus EngineContextName(const EngineContext* context, const char** name) {
  return ToStatus(__func__, [&] { Required(name, "the result") = Required(context, "the context").run.name(); });
}

EngineStatus EngineContextWorker(const EngineContext* context, int32_t* worker) {
  return ToStatus(__func__, [&] { Required(worker, "the result") = Required(context, "the context").run.worker(); });
}

EngineStatus EngineContextVersion(const EngineContext* context, EngineVar var, uint64_t* version) {
  return ToStatus(__func__,
                  [&] { Required(version, "the result") = Required(context, "the context").run.version(Live(var)); });
}

EngineStatus EngineContextCancelled(const EngineContext* context, int32_t* cancelled) {
  return ToStatus(
      __func__, [&] { Required(cancelled, "the result") = Required(context, "the context").run.cancelled() ? 1 : 0; });
}

EngineStatus EngineContextDeferSync(const EngineContext* context, int32_t* defer) {
  return ToStatus(__func__,
                  [&] { Required(defer, "the result") = Required(context, "the context").run.defer_sync() ? 1 : 0; });
}

EngineStatus EngineContextCudaStream(const EngineContext* context, void** stream) {
  return ToStatus(__func__, [&] { Required(stream, "the result") = CudaStream(Required(context, "the context").run); });
}

EngineStatus EngineContextAllocate(EngineContext* context, uint64_t bytes, EngineDeviceMemory* memory, void** data) {
  return ToStatus(__func__, [&] {
    EngineContext& live = Required(context, "the context");
    EngineDeviceMemory& result = Required(memory, "the result");
    void*& address = Required(data, "the address");
    result = NewHandle<EngineDeviceMemory>(live.run.Allocate(bytes));
    address = Live(result).data();
  });
}

EngineStatus EngineDeviceMemoryFree(EngineDeviceMemory memory) { return Free(__func__, memory); }

EngineStatus EngineContextCopyIn(EngineContext* context, void* to_device, const void* from_host, uint64_t bytes) {
  return ToStatus(__func__, [&] {
    engine::RunContext& run = Required(context, "the context").run;
    OrThrow(run.device().CopyIn(to_device, from_host, bytes, run.stream()));
  });
}

EngineStatus EngineContextCopyOut(EngineContext* context, void* to_host, const void* from_device, uint64_t bytes) {
  return ToStatus(__func__, [&] {
    engine::RunContext& run = Required(context, "the context").run;
    OrThrow(run.device().CopyOut(to_host, from_device, bytes, run.stream()));
  });
}

EngineStatus EngineContextParallelFor(EngineContext* context, int64_t n, int64_t grain, EngineRangeFn fn, void* arg) {
  return ToStatus(__func__, [&] {
    EngineContext& live = Required(context, "the context");
    Required(fn, "the function");
    if (n < 0 || grain < 0) {
      throw UsageError("a range of " + std::to_string(n) + " with a grain of " + std::to_string(grain) +
                       "; neither may be negative");
    }
    const EngineHandle engine = t_body ? t_body->engine : nullptr;
    const auto body = [fn, arg, engine](size_t begin, size_t end) {
      const CBodyFrame frame(engine);  // a piece may run on any thread
      if (const int32_t code = fn(arg, static_cast<int64_t>(begin), static_cast<int64_t>(end))) {
        throw BodyError(code, "the piece [" + std::to_string(begin) + ", " + std::to_string(end) +
                                  ") returned status " + std::to_string(code));
      }
    };
    live.run.ParallelFor(static_cast<size_t>(n), static_cast<size_t>(grain > 0 ? grain : 1), body);
  });
}

EngineStatus EngineOpSetError(EngineContext* context, const char* message) {
  return ToStatus(__func__, [&] {
    EngineContext& its = Required(context, "the context");
    std::string text = &Required(message, "the message");
    const std::lock_guard lock(its.mu);
    its.error = std::move(text);
  });
}

// ---- completions

EngineStatus EngineCompletionDone(EngineCompletion done) {
  return Ending(__func__, done, [](engine::Completion& completion) { completion(); });
}

EngineStatus EngineCompletionFail(EngineCompletion done, int32_t code, const char* message) {
  return Ending(__func__, done,
                [=](engine::Completion& completion) { completion.Fail(BodyError(code, message ? message : "")); });
}

EngineStatus EngineCompletionRetain(EngineCompletion done) {
  return ToStatus(__func__, [&] {
    if (!HandleKind<EngineCompletion>::table.Retain(ToBits(done))) RefuseHandle(done, "completion");
  });
}

EngineStatus EngineCompletionRelease(EngineCompletion done) { return Free(__func__, done); }
