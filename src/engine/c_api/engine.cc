// Engines, Vars, waits and cancel scopes in the C API. c_api.h has the conventions.
#include <cerrno>
#include <cstdio>
#include <system_error>

#include "base/per_thread.h"
#include "c_api/config.h"
#include "c_api/internal.h"

namespace engine::capi {
namespace {

// ---- shutdown

void ShutDown(EngineHandle engine) {
  Engine& live = Live(engine);
  // Inside a body the shutdown below is refused, and a refused call changes nothing.
  if (!InsideBodyOf(engine)) ReleaseHeldOps(engine);
  live.Shutdown();
}

// ---- cancel scopes

// The scopes that this thread has entered. If the thread ends inside some, it leaves them, the innermost first.
class EnteredScopes {
 public:
  ~EnteredScopes() {
    while (!entered_.empty()) entered_.pop_back();
  }
  void Enter(EngineCancelScope handle, const CancelScope& scope) {
    entered_.push_back(std::make_unique<Entered>(handle, scope));
  }
  void Leave(EngineCancelScope handle) {
    if (entered_.empty()) throw UsageError("this thread is in no cancel scope; enter one on it first");
    if (entered_.back()->handle != handle)
      throw UsageError("this is not the cancel scope that was entered last; leave that one first");
    entered_.pop_back();
  }

 private:
  struct Entered {
    Entered(EngineCancelScope h, const CancelScope& s) : handle(h), scope(s), entered(scope.Enter()) {}
    EngineCancelScope handle;
    CancelScope scope;  // a copy, because the handle may be freed before Leave
    CancelScope::Entered entered;
  };
  std::vector<std::unique_ptr<Entered>> entered_;
};

EnteredScopes& ThisThreadsScopes() { return detail::PerThread<EnteredScopes>::Get(); }

}  // namespace
}  // namespace engine::capi

using namespace engine::capi;  // NOLINT: this file defines its C face

const char* EngineVersion(void) { return engine::Version(); }
int32_t EngineCApiVersion(void) { return ENGINE_C_API_VERSION; }

// ---- engines

EngineStatus EngineCreate(const EngineConfig* config, EngineHandle* engine) {
  return ToStatus(__func__, [&] {
    EngineHandle& result = Required(engine, "the result");
    result = NewHandle<EngineHandle>(ReadConfig(config));
  });
}

EngineStatus EngineShutdown(EngineHandle engine) {
  return ToStatus(__func__, [&] { ShutDown(engine); });
}

EngineStatus EngineDestroy(EngineHandle engine) {
  return ToStatus(__func__, [&] {
    ShutDown(engine);  // before the handle is freed, because ops that are draining may use it
    FreeHandle(engine);
  });
}

EngineStatus EngineStop(EngineHandle engine) {
  return ToStatus(__func__, [&] { Live(engine).Stop(); });
}

EngineStatus EngineStart(EngineHandle engine) {
  return ToStatus(__func__, [&] { Live(engine).Start(); });
}

EngineStatus EngineSetPolicy(EngineHandle engine, const char* policy) {
  return ToStatus(__func__, [&] { Live(engine).SetPolicy(engine::ParsePolicy(&Required(policy, "the policy"))); });
}

EngineStatus EngineGetPolicy(EngineHandle engine, const char** policy) {
  return ToStatus(__func__, [&] {
    Required(policy, "the result") = engine::Name::Intern(engine::PolicyText(Live(engine).policy_choice())).c_str();
  });
}

EngineStatus EnginePolicyAt(int32_t index, const char** name, const char** help) {
  return ToStatus(__func__, [&] {
    const auto policies = engine::Policies();
    if (index < 0 || static_cast<size_t>(index) >= policies.size()) {
      throw engine::UsageError("there is no policy " + std::to_string(index) + "; there are " +
                               std::to_string(policies.size()));
    }
    const engine::PolicyInfo& info = policies[static_cast<size_t>(index)];
    Required(name, "the result") = engine::Name::Intern(info.name).c_str();
    if (help) *help = engine::Name::Intern(info.help).c_str();
  });
}

EngineStatus EnginePool(EngineHandle engine, const char* name, EnginePlacement* place) {
  return ToStatus(__func__, [&] {
    EnginePlacement& result = Required(place, "the result");
    const engine::Placement found = Live(engine).Pool(&Required(name, "the pool's name"));
    result = {static_cast<uint32_t>(found.kind), found.index};
  });
}

EngineStatus EngineWorkers(EngineHandle engine, int32_t* workers) {
  return ToStatus(__func__, [&] { Required(workers, "the result") = Live(engine).workers(); });
}

// Every field of the struct must be a counter of the table; if a row has no field, this does not compile.
#define ENGINE_COUNT_FIELD(name, what) +sizeof(uint64_t)
#define ENGINE_READ_COUNTER(name, what) read.name = stats.name;
static_assert(sizeof(EngineCounters) == sizeof(size_t) ENGINE_COUNTERS(ENGINE_COUNT_FIELD));
static_assert(sizeof(EngineDeviceCounters) == sizeof(size_t) ENGINE_DEVICE_COUNTERS(ENGINE_COUNT_FIELD));

EngineStatus EngineGetCounters(EngineHandle engine, EngineCounters* counters) {
  return ToStatus(__func__, [&] {
    EngineCounters& result = Required(counters, "the result");
    const engine::EngineStats stats = Live(engine).stats();
    EngineCounters read = {};
    ENGINE_COUNTERS(ENGINE_READ_COUNTER)
    WriteStruct(read, result, result.struct_size, "EngineCounters");
  });
}

EngineStatus EngineGetDeviceCounters(EngineHandle engine, EngineDeviceCounters* counters) {
  return ToStatus(__func__, [&] {
    EngineDeviceCounters& result = Required(counters, "the result");
    const engine::DeviceStats stats = Live(engine).device_stats();
    EngineDeviceCounters read = {};
    ENGINE_DEVICE_COUNTERS(ENGINE_READ_COUNTER)
    WriteStruct(read, result, result.struct_size, "EngineDeviceCounters");
  });
}
#undef ENGINE_READ_COUNTER
#undef ENGINE_COUNT_FIELD

EngineStatus EngineTraceStart(EngineHandle engine) {
  return ToStatus(__func__, [&] { Live(engine).StartTrace(); });
}

EngineStatus EngineTraceStop(EngineHandle engine, const char* path, char** json) {
  return ToStatus(__func__, [&] {
    engine::Engine& live = Live(engine);
    const auto refuse = [path](int error) {
      throw IoError(std::string(path) + ": " + std::generic_category().message(error));
    };
    std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(path ? std::fopen(path, "wb") : nullptr, &std::fclose);
    if (path && !file) refuse(errno);
    const std::string text = engine::ChromeTraceJson(live.StopTrace());
    if (file) {
      const bool written = std::fwrite(text.data(), 1, text.size(), file.get()) == text.size();
      const int write_error = errno;
      if (std::fclose(file.release()) != 0) refuse(errno);
      if (!written) refuse(write_error);
    }
    if (json) *json = NewText(text);
  });
}

EngineStatus EngineDescribePending(EngineHandle engine, char** text) {
  return ToStatus(__func__, [&] {
    char*& result = Required(text, "the result");
    result = NewText(Live(engine).DescribePending());
  });
}

// ---- Vars

EngineStatus EngineVarNew(EngineHandle engine, const char* name, EngineVar* var) {
  return ToStatus(__func__, [&] {
    EngineVar& result = Required(var, "the result");
    result = NewHandle<EngineVar>(Live(engine).NewVar(name ? name : ""));
  });
}

EngineStatus EngineVarCopy(EngineVar var, EngineVar* copy) {
  return ToStatus(__func__, [&] {
    EngineVar& result = Required(copy, "the result");
    result = NewHandle<EngineVar>(Live(var));
  });
}

EngineStatus EngineVarFree(EngineVar var) { return Free(__func__, var); }

EngineStatus EngineVarDelete(EngineHandle engine, EngineVar var) {
  return ToStatus(__func__, [&] {
    engine::Var ours = Live(var);
    Live(engine).Delete(ours, {});  // from C no line is known
    FreeHandle(var);
  });
}

EngineStatus EngineVarVersion(EngineVar var, uint64_t* version) {
  return ToStatus(__func__, [&] { Required(version, "the result") = Live(var).version(); });
}

EngineStatus EngineVarName(EngineVar var, const char** name) {
  return ToStatus(__func__, [&] { Required(name, "the result") = Live(var).name(); });
}

// ---- waits

EngineStatus EngineWait(EngineHandle engine, EngineVar var, EngineSite site) {
  return ToStatus(__func__, [&] { Live(engine).Wait(Live(var), ToSite(site)); });
}

EngineStatus EngineWaitFor(EngineHandle engine, EngineVar var, int64_t timeout_ns, EngineSite site) {
  return ToStatus(__func__, [&]() -> EngineStatus {
    return Live(engine).WaitFor(Live(var), ReadTimeout(timeout_ns), ToSite(site)) ? ENGINE_OK : ENGINE_TIMEOUT;
  });
}

EngineStatus EngineWaitToWrite(EngineHandle engine, EngineVar var, EngineSite site) {
  return ToStatus(__func__, [&] { Live(engine).WaitToWrite(Live(var), ToSite(site)); });
}

EngineStatus EngineWaitAll(EngineHandle engine) {
  return ToStatus(__func__, [&] { Live(engine).WaitAll(); });
}

EngineStatus EngineWaitAllFor(EngineHandle engine, int64_t timeout_ns) {
  return ToStatus(__func__, [&]() -> EngineStatus {
    return Live(engine).WaitAllFor(ReadTimeout(timeout_ns)) ? ENGINE_OK : ENGINE_TIMEOUT;
  });
}

EngineStatus EngineClearError(EngineHandle engine, EngineVar var, EngineSite site) {
  return ToStatus(__func__, [&] { Live(engine).ClearError(Live(var), ToSite(site)); });
}

// ---- cancel scopes

EngineStatus EngineCancelScopeNew(EngineCancelScope* scope) {
  return ToStatus(__func__, [&] {
    EngineCancelScope& result = Required(scope, "the result");
    result = NewHandle<EngineCancelScope>();
  });
}

EngineStatus EngineCancelScopeCancel(EngineCancelScope scope) {
  return ToStatus(__func__, [&] { Live(scope).Cancel(); });
}

EngineStatus EngineCancelScopeCancelled(EngineCancelScope scope, int32_t* cancelled) {
  return ToStatus(__func__, [&] { Required(cancelled, "the result") = Live(scope).cancelled() ? 1 : 0; });
}

EngineStatus EngineCancelScopeEnter(EngineCancelScope scope) {
  return ToStatus(__func__, [&] { ThisThreadsScopes().Enter(scope, Live(scope)); });
}

EngineStatus EngineCancelScopeLeave(EngineCancelScope scope) {
  return ToStatus(__func__, [&] { ThisThreadsScopes().Leave(scope); });
}

EngineStatus EngineCancelScopeFree(EngineCancelScope scope) { return Free(__func__, scope); }
