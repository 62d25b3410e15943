// The C API's engines, Vars, waits and cancel scopes. See c_api.h for the conventions.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>

#include "base/per_thread.h"
#include "c_api/internal.h"

namespace engine::capi {
namespace {

// ---- options

std::vector<int> ReadCpus(const int32_t* cpus, int32_t count) {
  const size_t n = CheckedCount(count, cpus, "cpus");
  return {cpus, cpus + n};
}

std::function<void(int)> ReadHook(EngineWorkerHook hook, void* arg) {
  if (!hook) return {};
  return [hook, arg](int worker) { hook(arg, worker); };
}

std::vector<PoolOptions> ReadPools(const EnginePoolConfig* pools, int32_t count) {
  std::vector<PoolOptions> read;
  const auto* at = reinterpret_cast<const unsigned char*>(pools);
  const size_t n = CheckedCount(count, pools, "pools");
  for (size_t i = 0; i < n; ++i, at += pools->struct_size) {
    const auto& given = *reinterpret_cast<const EnginePoolConfig*>(at);
    if (given.struct_size != pools->struct_size) {
      throw UsageError("pools[" + std::to_string(i) + "].struct_size is " + std::to_string(given.struct_size) +
                       ", that of pools[0] is " + std::to_string(pools->struct_size));
    }
    EnginePoolConfig pool = {};
    ReadStruct(given, pool, "EnginePoolConfig");
    read.push_back({.name = &Required(pool.name, "a pool's name"),
                    .threads = pool.threads,
                    .cpus = ReadCpus(pool.cpus, pool.num_cpus),
                    .on_start = ReadHook(pool.on_start, pool.on_start_arg),
                    .on_end = ReadHook(pool.on_end, pool.on_end_arg)});
  }
  return read;
}

int64_t NotNegative(int64_t value, const char* what) {
  if (value < 0) throw UsageError(std::string(what) + " is " + std::to_string(value));
  return value;
}

PolicyOptions ReadPolicyFlags(uint32_t flags) {
  if ((flags & ~uint32_t{ENGINE_POLICY_RAISE_AT_PUSH | ENGINE_POLICY_WHOLE_STEPS}) != 0) {
    throw UsageError("unknown policy flags " + std::to_string(flags));
  }
  return {.raise_at_push = (flags & ENGINE_POLICY_RAISE_AT_PUSH) != 0,
          .smart_stage = (flags & ENGINE_POLICY_WHOLE_STEPS) == 0};
}
uint32_t PolicyFlags(const PolicyOptions& options) {
  uint32_t flags = 0;
  if (options.raise_at_push) flags |= ENGINE_POLICY_RAISE_AT_PUSH;
  if (!options.smart_stage) flags |= ENGINE_POLICY_WHOLE_STEPS;
  return flags;
}

const char* NameOfPolicy(Policy policy) {
  for (const PolicyInfo& info : Policies()) {
    if (info.policy == policy) return Name::Intern(info.name).c_str();
  }
  return "";
}

EngineConfig ToConfig(const EngineOptions& options) {
  EngineConfig config = {};
  config.struct_size = sizeof config;
  config.workers = options.workers;
  config.intra_op_threads = options.intra_op_threads;
  config.io_threads = options.io_threads;
  config.max_spare_threads = options.max_spare_threads;
  config.thread_name = Name::Intern(options.thread_name).c_str();
  config.policy = NameOfPolicy(options.policy);
  config.policy_flags = PolicyFlags(options.policy_options);
  config.max_pending = static_cast<int64_t>(options.max_pending);
  config.hard_max_pending = static_cast<int64_t>(options.hard_max_pending);
  config.spin_us = options.spin.count();
  config.drain_timeout_ms = options.drain_timeout.count();
  config.stall_timeout_ms = options.stall_timeout.count();
  config.streams_per_device = options.streams_per_device;
  return config;
}

EngineOptions ReadConfig(const EngineConfig* given) {
  EngineOptions options;
  if (!given) return options;
  EngineConfig config = ToConfig(options);
  ReadStruct(*given, config, "EngineConfig");
  if (config.reserved != 0) throw UsageError("EngineConfig.reserved is " + std::to_string(config.reserved));
  options.workers = config.workers;
  options.intra_op_threads = config.intra_op_threads;
  options.io_threads = config.io_threads;
  options.max_spare_threads = config.max_spare_threads;
  options.cpus = ReadCpus(config.cpus, config.num_cpus);
  options.on_start = ReadHook(config.on_start, config.on_start_arg);
  options.on_end = ReadHook(config.on_end, config.on_end_arg);
  options.pools = ReadPools(config.pools, config.num_pools);
  if (config.thread_name) options.thread_name = config.thread_name;
  if (config.policy) options.policy = PolicyByName(config.policy);
  options.policy_options = ReadPolicyFlags(config.policy_flags);
  options.max_pending = static_cast<size_t>(NotNegative(config.max_pending, "max_pending"));
  options.hard_max_pending = static_cast<size_t>(NotNegative(config.hard_max_pending, "hard_max_pending"));
  options.spin = std::chrono::microseconds(NotNegative(config.spin_us, "spin_us"));
  options.drain_timeout = std::chrono::milliseconds(NotNegative(config.drain_timeout_ms, "drain_timeout_ms"));
  options.stall_timeout = std::chrono::milliseconds(NotNegative(config.stall_timeout_ms, "stall_timeout_ms"));
  options.streams_per_device = config.streams_per_device;
  const size_t devices = CheckedCount(config.num_devices, config.devices, "devices");
  for (size_t i = 0; i < devices; ++i)
    options.devices.push_back(engine::MakeDevice(&Required(config.devices[i], "a device's name")));
  if (config.on_stall) {
    options.on_stall = [hook = config.on_stall, arg = config.on_stall_arg](std::string_view report) {
      hook(arg, std::string(report).c_str());
    };
  }
  if (config.on_unobserved) {
    options.on_unobserved = [hook = config.on_unobserved, arg = config.on_unobserved_arg](const OpError& error) {
      hook(arg, OpErrorText(error).view());
    };
  }
  return options;
}

// ---- waits

std::chrono::nanoseconds ReadTimeout(int64_t timeout_ns) {
  // Half the range: adding it to a clock cannot overflow.
  return std::chrono::nanoseconds(std::min(NotNegative(timeout_ns, "timeout_ns"), INT64_MAX / 2));
}

// ---- shutdown

void ShutDown(EngineHandle engine) {
  Engine& live = Live(engine);
  if (!InsideBodyOf(engine)) ReleaseHeldOps(engine);  // else the next line refuses, and nothing may have changed
  live.Shutdown();
}

// ---- cancel scopes

// The scopes that this thread has entered. A thread that ends inside some leaves them, the innermost first.
class EnteredScopes {
 public:
  ~EnteredScopes() {
    while (!entered_.empty()) entered_.pop_back();
  }
  void Enter(EngineCancelScope handle, const CancelScope& scope) {
    entered_.push_back(std::make_unique<Entered>(handle, scope));
  }
  void Leave(EngineCancelScope handle) {
    if (entered_.empty()) throw UsageError("this thread is in no cancel scope");
    if (entered_.back()->handle != handle) throw UsageError("this is not the cancel scope that was entered last");
    entered_.pop_back();
  }

 private:
  struct Entered {
    Entered(EngineCancelScope h, const CancelScope& s) : handle(h), scope(s), guard(scope.Enter()) {}
    EngineCancelScope handle;
    CancelScope scope;  // a copy: the handle may be freed before Leave
    CancelScope::Guard guard;
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

EngineStatus EngineConfigInit(EngineConfig* config, size_t struct_size) {
  return Guard(__func__,
               [&] { WriteStruct(ToConfig({}), Required(config, "the config"), struct_size, "EngineConfig"); });
}

EngineStatus EngineConfigFromEnv(EngineConfig* config, size_t struct_size) {
  return Guard(__func__, [&] {
    WriteStruct(ToConfig(engine::EngineOptions::FromEnv()), Required(config, "the config"), struct_size,
                "EngineConfig");
  });
}

EngineStatus EngineCreate(const EngineConfig* config, EngineHandle* engine) {
  return Guard(__func__, [&] {
    EngineHandle& result = Required(engine, "the result");
    result = NewHandle<EngineHandle>(ReadConfig(config));
  });
}

EngineStatus EngineShutdown(EngineHandle engine) {
  return Guard(__func__, [&] { ShutDown(engine); });
}

EngineStatus EngineDestroy(EngineHandle engine) {
  return Guard(__func__, [&] {
    ShutDown(engine);  // with the handle still good: ops that are draining may use it
    FreeHandle(engine);
  });
}

EngineStatus EngineStop(EngineHandle engine) {
  return Guard(__func__, [&] { Live(engine).Stop(); });
}

EngineStatus EngineStart(EngineHandle engine) {
  return Guard(__func__, [&] { Live(engine).Start(); });
}

EngineStatus EngineSetPolicy(EngineHandle engine, const char* name, uint32_t flags) {
  return Guard(__func__, [&] {
    engine::Engine& live = Live(engine);
    live.SetPolicy(engine::PolicyByName(&Required(name, "the policy's name")), ReadPolicyFlags(flags));
  });
}

EngineStatus EngineGetPolicy(EngineHandle engine, const char** name, uint32_t* flags) {
  return Guard(__func__, [&] {
    Required(name, "the name");
    Required(flags, "the flags");
    const engine::PolicyChoice choice = Live(engine).policy_choice();
    *name = NameOfPolicy(choice.policy);
    *flags = PolicyFlags(choice.options);
  });
}

EngineStatus EnginePolicyAt(int32_t index, const char** name, const char** help) {
  return Guard(__func__, [&] {
    const auto policies = engine::Policies();
    if (index < 0 || static_cast<size_t>(index) >= policies.size()) {
      throw engine::UsageError("there is no policy " + std::to_string(index));
    }
    const engine::PolicyInfo& info = policies[static_cast<size_t>(index)];
    Required(name, "the result") = engine::Name::Intern(info.name).c_str();
    if (help) *help = engine::Name::Intern(info.help).c_str();
  });
}

EngineStatus EnginePool(EngineHandle engine, const char* name, EnginePlacement* place) {
  return Guard(__func__, [&] {
    EnginePlacement& result = Required(place, "the result");
    const engine::Placement found = Live(engine).Pool(&Required(name, "the pool's name"));
    result = {static_cast<uint32_t>(found.kind), found.index};
  });
}

EngineStatus EngineWorkers(EngineHandle engine, int32_t* workers) {
  return Guard(__func__, [&] { Required(workers, "the result") = Live(engine).workers(); });
}

EngineStatus EngineGetCounters(EngineHandle engine, EngineCounters* counters) {
  return Guard(__func__, [&] {
    EngineCounters& result = Required(counters, "the result");
    const engine::EngineStats stats = Live(engine).stats();
    const EngineCounters read = {.struct_size = sizeof read,
                                 .pushed = stats.pushed,
                                 .completed = stats.completed,
                                 .skipped = stats.skipped,
                                 .inlined = stats.inlined,
                                 .stolen = stats.stolen,
                                 .wakeups = stats.wakeups,
                                 .sleeps = stats.sleeps,
                                 .spare_threads = stats.spare_threads,
                                 .slab_bytes = stats.slab_bytes,
                                 .slab_allocations = stats.slab_allocations,
                                 .unseen_errors = stats.unseen_errors,
                                 .backpressure_waits = stats.backpressure_waits,
                                 .dispatches = stats.dispatches,
                                 .split_looks = stats.split_looks};
    WriteStruct(read, result, result.struct_size, "EngineCounters");
  });
}

EngineStatus EngineGetDeviceCounters(EngineHandle engine, EngineDeviceCounters* counters) {
  return Guard(__func__, [&] {
    EngineDeviceCounters& result = Required(counters, "the result");
    const engine::DeviceStats stats = Live(engine).device_stats();
    const EngineDeviceCounters read = {.struct_size = sizeof read,
                                       .issued = stats.issued,
                                       .retired = stats.retired,
                                       .records = stats.records,
                                       .waits = stats.waits,
                                       .waits_elided = stats.waits_elided,
                                       .events = stats.events,
                                       .queries = stats.queries,
                                       .host_waits = stats.host_waits,
                                       .host_syncs = stats.host_syncs,
                                       .lanes = stats.lanes,
                                       .graph_captures = stats.graph_captures,
                                       .graph_instantiations = stats.graph_instantiations,
                                       .graph_updates = stats.graph_updates,
                                       .graph_launches = stats.graph_launches,
                                       .late_looks = stats.late_looks};
    WriteStruct(read, result, result.struct_size, "EngineDeviceCounters");
  });
}

EngineStatus EngineTraceStart(EngineHandle engine) {
  return Guard(__func__, [&] { Live(engine).StartTrace(); });
}

EngineStatus EngineTraceStop(EngineHandle engine, const char* path, char** json) {
  return Guard(__func__, [&] {
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
  return Guard(__func__, [&] {
    char*& result = Required(text, "the result");
    result = NewText(Live(engine).DescribePending());
  });
}

// ---- Vars

EngineStatus EngineVarNew(EngineHandle engine, const char* name, EngineVar* var) {
  return Guard(__func__, [&] {
    EngineVar& result = Required(var, "the result");
    result = NewHandle<EngineVar>(Live(engine).NewVar(name ? name : ""));
  });
}

EngineStatus EngineVarCopy(EngineVar var, EngineVar* copy) {
  return Guard(__func__, [&] {
    EngineVar& result = Required(copy, "the result");
    result = NewHandle<EngineVar>(Live(var));
  });
}

EngineStatus EngineVarFree(EngineVar var) {
  return Guard(__func__, [&] { FreeHandle(var); });
}

EngineStatus EngineVarDelete(EngineHandle engine, EngineVar var) {
  return Guard(__func__, [&] {
    engine::Var ours = Live(var);
    Live(engine).Delete(ours);
    FreeHandle(var);
  });
}

EngineStatus EngineVarVersion(EngineVar var, uint64_t* version) {
  return Guard(__func__, [&] { Required(version, "the result") = Live(var).version(); });
}

EngineStatus EngineVarName(EngineVar var, const char** name) {
  return Guard(__func__, [&] { Required(name, "the result") = Live(var).name(); });
}

// ---- waits

EngineStatus EngineWait(EngineHandle engine, EngineVar var, EngineSite site) {
  return Guard(__func__, [&] { Live(engine).Wait(Live(var), ToSite(site)); });
}

EngineStatus EngineWaitFor(EngineHandle engine, EngineVar var, int64_t timeout_ns, EngineSite site) {
  return Guard(__func__, [&]() -> EngineStatus {
    return Live(engine).WaitFor(Live(var), ReadTimeout(timeout_ns), ToSite(site)) ? ENGINE_OK : ENGINE_TIMEOUT;
  });
}

EngineStatus EngineWaitToWrite(EngineHandle engine, EngineVar var, EngineSite site) {
  return Guard(__func__, [&] { Live(engine).WaitToWrite(Live(var), ToSite(site)); });
}

EngineStatus EngineWaitAll(EngineHandle engine) {
  return Guard(__func__, [&] { Live(engine).WaitAll(); });
}

EngineStatus EngineWaitAllFor(EngineHandle engine, int64_t timeout_ns) {
  return Guard(__func__, [&]() -> EngineStatus {
    return Live(engine).WaitAllFor(ReadTimeout(timeout_ns)) ? ENGINE_OK : ENGINE_TIMEOUT;
  });
}

EngineStatus EngineClearError(EngineHandle engine, EngineVar var, EngineSite site) {
  return Guard(__func__, [&] { Live(engine).ClearError(Live(var), ToSite(site)); });
}

// ---- cancel scopes

EngineStatus EngineCancelScopeNew(EngineCancelScope* scope) {
  return Guard(__func__, [&] {
    EngineCancelScope& result = Required(scope, "the result");
    result = NewHandle<EngineCancelScope>();
  });
}

EngineStatus EngineCancelScopeCancel(EngineCancelScope scope) {
  return Guard(__func__, [&] { Live(scope).Cancel(); });
}

EngineStatus EngineCancelScopeCancelled(EngineCancelScope scope, int32_t* cancelled) {
  return Guard(__func__, [&] { Required(cancelled, "the result") = Live(scope).cancelled() ? 1 : 0; });
}

EngineStatus EngineCancelScopeEnter(EngineCancelScope scope) {
  return Guard(__func__, [&] { ThisThreadsScopes().Enter(scope, Live(scope)); });
}

EngineStatus EngineCancelScopeLeave(EngineCancelScope scope) {
  return Guard(__func__, [&] { ThisThreadsScopes().Leave(scope); });
}

EngineStatus EngineCancelScopeFree(EngineCancelScope scope) {
  return Guard(__func__, [&] { FreeHandle(scope); });
}
