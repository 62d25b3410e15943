#include "drop_in.h"

#include <chrono>
#include <cstdio>
#include <string>

#include "completion.h"
#include "fork.h"
#include "here.h"
#include "host.h"
#include "options.h"
#include "profiler.h"

namespace engine_mxnet {
namespace {

::engine::Placement PoolOr(const ::engine::Engine& engine, const std::string& name) {
  try {
    return engine.Pool(name);
  } catch (const ::engine::UsageError&) {  // an engine that the program made itself
    return ::engine::Cpu();
  }
}

std::unique_ptr<::engine::Engine> OwnEngine() {
  ::engine::EngineOptions options = OptionsFromEnv();
  options.thread_name = "mxnet";
  AddPools(options);
  return std::make_unique<::engine::Engine>(std::move(options));
}

}  // namespace

DropIn::DropIn(bool naive)
    : own_(TheHost() ? nullptr : OwnEngine()),
      ledger_(own_ ? NewLedger() : HostLedger()),
      engine_(own_ ? *own_ : TheHost()->engine()),
      naive_(naive),
      prioritized_(PoolOr(engine_, kPriorityPool)) {
  for (int i = 1; i <= kDevicePools; ++i) devices_.push_back(PoolOr(engine_, DevicePool(i)));
  if (naive_ && engine_.policy() != ::engine::Policy::kNaive) engine_.SetPolicy(::engine::Policy::kNaive);
  ChooseScratch(engine_.workers());
  if (ProfilerIsOn()) SayThatTheProfilerSeesNoOps();
  KeepFreedMemory();
  ForkWith(*this);
}

DropIn::~DropIn() noexcept(false) {
  NotifyShutdown();
  NoForkWith(*this);
  ledger_.failures.TakeAll();
}

void DropIn::NotifyShutdown() {
  if (!ledger_.ending.exchange(true)) {
    g_ending.fetch_add(1, std::memory_order_relaxed);
    ending_.counted = own_ != nullptr;  // the host's engine may run what is pending after we are gone
  }
  try {
    Drained("MXNet ends");
  } catch (const ::engine::UsageError&) {  // inside an op, where nothing can be waited for
  }
}

bool DropIn::Drained(const char* before) {
  const Returns::Pause pause;
  if (engine_.Drain(drain_timeout_)) return true;
  std::fprintf(stderr, "engine.mxnet: %s while ops have not ended\n%s", before, engine_.DescribePending().c_str());
  return false;
}

void DropIn::Stop() {
  if (!Forking()) BeforeFork();
}

void DropIn::Start() {
  if (!Forking()) AfterFork();
}

void DropIn::BeforeFork() {
  try {
    if (Drained("the process forks")) engine_.Stop();
  } catch (const ::engine::UsageError&) {  // inside an op: the engine knows how to fork there
  }
}

void DropIn::AfterFork() {
  try {
    engine_.Start();
  } catch (const ::engine::Error& error) {
    std::fprintf(stderr, "engine.mxnet: %s\n", error.what());
  }
}

abi::Var* DropIn::NewVariable() {
  try {
    return new Var(engine_, ledger_);
  } catch (const ::engine::UsageError&) {
    if (!Refused()) throw;
    return new Var;  // MXNet is ending: nothing will be pushed on it
  }
}

void DropIn::DeleteVariable(abi::SyncFn fn, abi::Context context, abi::Var* given) {
  Var* const var = static_cast<Var*>(given);
  var->on_delete = std::move(fn);
  var->delete_context = context;
  if (!Refused()) {
    try {
      CountNested();
      // First among ready ops: it frees memory that the next op may take, and no op waits for it.
      return engine_.Push(
          {.name = "DeleteVariable", .updates = var->var, .priority = ::engine::kMaxPriority, .run_always = true},
          DeleteBody{var}, {"mxnet", 0});
    } catch (
        const std::
            exception&) {  // it takes no more ops, or there is no memory: here and now, then, because destructors call this
    }
  }
  try {
    if (var->var) engine_.WaitToWrite(var->var);
  } catch (const ::engine::Error&) {  // of the op that asks for it, or poisoned: it may go all the same
  }
  DeleteBody::Delete(var);
}

// --- waits

void DropIn::WaitForVar(abi::Var* given) {
  Var* const var = static_cast<Var*>(given);
  if (var->var) {
    const Returns::Pause pause;
    engine_.Wait(var->var, {"mxnet", 0});
  }
  Throw(var);
}

void DropIn::WaitForAll() {
  {
    const Returns::Pause pause;
    uint64_t before;
    do {
      before = ledger_.nested.load(std::memory_order_relaxed);
      engine_.Drain(std::chrono::milliseconds::max());
    } while (ledger_.nested.load(std::memory_order_relaxed) != before);
  }
  if (std::exception_ptr first = ledger_.failures.TakeAll()) std::rethrow_exception(first);
}

void DropIn::Throw(abi::Var* given) {
  if (std::exception_ptr exception = ledger_.failures.Take(*static_cast<Var*>(given)))
    std::rethrow_exception(exception);
}

// --- bulks

int DropIn::bulk_size() const { return t_here.bulk_size; }
int DropIn::set_bulk_size(int size) { return std::exchange(t_here.bulk_size, size); }

}  // namespace engine_mxnet
