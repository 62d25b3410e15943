#include "drop_in.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "completion.h"
#include "fork.h"
#include "host.h"
#include "names.h"
#include "options.h"

namespace engine_mxnet {
namespace {

using ::engine::Site;
using ::engine::VarRef;

constexpr Site kSite("mxnet", 0);
// Longer than any step takes, shorter than patience: a function that waits for the thread that forks, or ends, never ends.
constexpr std::chrono::seconds kDrainTimeout(30);

thread_local constinit int t_depth = 0;  // functions of MXNet on this thread's stack
thread_local constinit int t_bulk_size = 0;
thread_local constinit bool t_started = false;  // MXNet's OpenMP knows this worker

struct InBody {
  InBody() { ++t_depth; }
  ~InBody() { --t_depth; }
};

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

// The handles of an op's Vars, on the stack where they are few.
class Refs {
 public:
  Refs(const abi::Vars& reads, const abi::Vars& updates) : reads_(reads.size()), all_(reads.size() + updates.size()) {
    if (all_ > kFew) more_.resize(all_, VarRef(nullptr));
    VarRef* to = begin();
    for (abi::Var* var : reads) std::construct_at(to++, static_cast<Var*>(var)->var);
    for (abi::Var* var : updates) std::construct_at(to++, static_cast<Var*>(var)->var);
  }
  std::span<const VarRef> reads() { return {begin(), reads_}; }
  std::span<const VarRef> updates() { return {begin() + reads_, all_ - reads_}; }

 private:
  static constexpr size_t kFew = 16;
  VarRef* begin() { return more_.empty() ? reinterpret_cast<VarRef*>(few_) : more_.data(); }

  const size_t reads_, all_;
  alignas(VarRef) std::byte few_[kFew * sizeof(VarRef)];
  std::vector<VarRef> more_;
};

}  // namespace

DropIn::DropIn(bool naive)
    : own_(TheHost() ? nullptr : OwnEngine()),
      engine_(own_ ? *own_ : TheHost()->engine()),
      naive_(naive),
      prioritized_(PoolOr(engine_, kPriorityPool)) {
  for (int i = 1; i <= kDevicePools; ++i) devices_.push_back(PoolOr(engine_, DevicePool(i)));
  if (naive_ && engine_.policy() != ::engine::Policy::kNaive) engine_.SetPolicy(::engine::Policy::kNaive);
  ForkWith(*this);
}

DropIn::~DropIn() noexcept(false) {
  NotifyShutdown();
  NoForkWith(*this);
}

void DropIn::NotifyShutdown() {
  ended_ = true;
  try {
    engine_.Drain(kDrainTimeout);
  } catch (const ::engine::UsageError&) {  // inside an op, where nothing can be waited for
  }
}

void DropIn::Stop() {
  if (!Forking()) BeforeFork();
}

void DropIn::Start() {
  if (!Forking()) AfterFork();
}

void DropIn::BeforeFork() {
  try {
    if (engine_.Drain(kDrainTimeout)) engine_.Stop();
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
  ::engine::Var var;
  try {
    var = engine_.NewVar();
  } catch (const ::engine::UsageError&) {
    if (!Refused()) throw;  // MXNet is ending: nothing will be pushed on it
  }
  return new Var(std::move(var));
}

// --- pushes

int DropIn::LevelOf(int priority) {
  if (priority == 0) [[likely]]
    return 0;
  // Two levels to each side: the outer one for the outer half of what was asked for so far. relaxed: an estimate.
  std::atomic<int>& most = priority < 0 ? lowest_ : highest_;
  int known = most.load(std::memory_order_relaxed);
  if (priority < 0 ? priority < known : priority > known) most.store(known = priority, std::memory_order_relaxed);
  if (priority < 0) return int64_t{2} * priority < known ? -2 : -1;
  return int64_t{2} * priority > known ? 2 : 1;
}

::engine::OpDesc DropIn::Describe(abi::Context context, abi::Property property, int priority, ::engine::Name name) {
  if (context.device_type == abi::kGpu) [[unlikely]]
    throw dmlc::Error("engine.mxnet: op '" + std::string(name.c_str()) +
                      "' is for a GPU; this engine runs MXNet's ops on CPUs only");
  ::engine::OpDesc desc{.name = name, .priority = LevelOf(priority)};
  const bool prioritized = property == abi::Property::kCpuPrioritized;
  if ((prioritized || context.device_id > 0) && ::engine::UsesWorkers(engine_.policy())) [[unlikely]]
    desc.place = prioritized ? prioritized_ : devices_[static_cast<size_t>(context.device_id - 1) % devices_.size()];
  return desc;
}

template <class Body>
void DropIn::Submit(const ::engine::OpDesc& desc, Body&& body) {
  if (t_depth) nested_.fetch_add(1, std::memory_order_relaxed);
  engine_.Push(desc, std::forward<Body>(body), kSite);
}

template <template <size_t> class Body, class Fn>
void DropIn::PushFunction(Fn&& fn, abi::Context context, const abi::Vars& reads, const abi::Vars& updates,
                          abi::Property property, int priority, ::engine::Name name, bool wait) {
  if (Refused()) return;
  ::engine::OpDesc desc = Describe(context, property, priority, name);
  Refs refs(reads, updates);
  desc.reads = refs.reads();
  desc.updates = refs.updates();
  NaivePush naive;
  const OpHead head{this, context, wait || property == abi::Property::kNoSkip, naive_ ? &naive : nullptr};
  if (reads.size() + updates.size() <= 4) {
    Submit(desc, Body<4>{head, {reads, updates}, std::forward<Fn>(fn)});
  } else {
    Submit(desc, Body<12>{head, {reads, updates}, std::forward<Fn>(fn)});
  }
  if (!naive_) return;
  if (!naive.ended) engine_.Drain(std::chrono::milliseconds::max());
  if (naive.thrown) std::rethrow_exception(naive.thrown);
}

void DropIn::PushSync(abi::SyncFn fn, abi::Context context, const abi::Vars& reads, const abi::Vars& updates,
                      abi::Property property, int priority, const char* name) {
  // Inside a function of the naive engine all that it could wait for has ended.
  if (naive_ && t_depth) return fn({.context = context});
  PushFunction<SyncBody>(std::move(fn), context, reads, updates, property, priority, NameOf(name, "PushSync"), false);
}

void DropIn::PushAsync(abi::AsyncFn fn, abi::Context context, const abi::Vars& reads, const abi::Vars& updates,
                       abi::Property property, int priority, const char* name, bool wait) {
  if (naive_ && t_depth) return RunHere(fn, context, this);
  PushFunction<AsyncBody>(std::move(fn), context, reads, updates, property, priority, NameOf(name, "PushAsync"), wait);
}

abi::Opr* DropIn::NewOperator(abi::AsyncFn fn, const abi::Vars& reads, const abi::Vars& updates, abi::Property property,
                              const char* name, bool wait) {
  return reinterpret_cast<abi::Opr*>(
      new Operator(std::move(fn), reads, updates, property, NameOf(name, "Operator"), wait));
}

void DropIn::DeleteOperator(abi::Opr* op) { reinterpret_cast<Operator*>(op)->Release(); }

void DropIn::Push(abi::Opr* given, abi::Context context, int priority, bool profiling) {
  if (profiling) {
    static const bool said =
        std::fputs("engine.mxnet: MXNet's profiler sees no ops here; engine.trace() does\n", stderr) >= 0;
    (void)said;
  }
  Operator* const op = reinterpret_cast<Operator*>(given);
  if (naive_ && t_depth) return RunHere(op->fn, context, this);
  if (Refused()) return;
  ::engine::OpDesc desc = Describe(context, op->property, priority, op->name);
  const std::span<const VarRef> refs(op->refs);
  desc.reads = refs.first(op->vars.reads().size());
  desc.updates = refs.subspan(op->vars.reads().size());
  NaivePush naive;
  const OpHead head{this, context, op->is_wait || op->property == abi::Property::kNoSkip, naive_ ? &naive : nullptr};
  op->count.fetch_add(1, std::memory_order_relaxed);
  Submit(desc, OperatorBody{head, std::unique_ptr<Operator, OperatorRelease>(op)});
  if (!naive_) return;
  if (!naive.ended) engine_.Drain(std::chrono::milliseconds::max());
  if (naive.thrown) std::rethrow_exception(naive.thrown);
}

void DropIn::DeleteVariable(abi::SyncFn fn, abi::Context context, abi::Var* given) {
  Var* const var = static_cast<Var*>(given);
  var->on_delete = std::move(fn);
  var->delete_context = context;
  if (!Refused()) {
    try {
      const ::engine::OpDesc desc{.name = "DeleteVariable", .updates = var->var, .run_always = true};
      return Submit(desc, DeleteBody{this, var});
    } catch (const ::engine::Error&) {  // it takes no more ops: here and now, then, because destructors call this
    }
  }
  try {
    if (var->var) engine_.WaitToWrite(var->var);
  } catch (const ::engine::Error&) {  // of the op that asks for it, or poisoned: it may go all the same
  }
  Delete(var);
}

// --- inside ops

template <class Run>
void DropIn::Execute(::engine::RunContext& ctx, const OpHead& head, std::span<Var* const> inputs,
                     std::span<Var* const> updates, Run&& run) {
  if (!t_started && ctx.worker() >= 0) [[unlikely]] {
    library_.StartWorkerThread();
    t_started = true;
  }
  Failures& failures = AllFailures();
  FailurePtr inherited;
  if (failures.any()) [[unlikely]]
    inherited = failures.Inherited(inputs);
  if (inherited && !head.always) [[unlikely]] {
    failures.CountSkip(*inherited);
  } else if (!Refused()) {
    try {
      const InBody in_body;
      run();
    } catch (...) {
      if (head.naive) {
        head.naive->thrown = std::current_exception();
      } else {
        inherited = failures.Add(std::current_exception(), ctx.name());
      }
    }
  }
  if (inherited) [[unlikely]]
    failures.Mark(updates, inherited);
}

template <size_t kInline>
void SyncBody<kInline>::operator()(::engine::RunContext& ctx) {
  head.engine->Execute(ctx, head, vars.all(), vars.updates(), [&] { fn({.context = head.context}); });
  if (head.naive) head.naive->ended = true;
}

template <class Vars>
void DropIn::ExecuteAsync(::engine::RunContext& ctx, const OpHead& head, const Vars& vars, const abi::AsyncFn& fn) {
  bool left = false;
  ::engine::Completion done;  // where the function has not called back when it returns
  Execute(ctx, head, vars.all(), vars.updates(), [&] {
    Call* const call = Call::Take();
    try {
      fn({.context = head.context}, call->callback(this));
    } catch (...) {
      call->Threw();
      throw;
    }
    std::exception_ptr error;
    const bool over = call->Returned(error, [&] {
      const std::span<Var* const> updates = vars.updates();
      done = ctx.Defer();
      return [name = ctx.name(), naive = head.naive, changed = std::vector(updates.begin(), updates.end()),
              done](std::exception_ptr thrown) mutable {
        if (naive) {
          naive->thrown = std::move(thrown);
          naive->ended = true;
        } else if (thrown) {
          AllFailures().Mark(changed, AllFailures().Add(std::move(thrown), name));
        }
        done();
      };
    });
    left = !over;
    if (error) std::rethrow_exception(error);
  });
  if (left) return;
  if (head.naive) head.naive->ended = true;
  if (done) done();  // it called back while we looked
}

template <size_t kInline>
void AsyncBody<kInline>::operator()(::engine::RunContext& ctx) {
  head.engine->ExecuteAsync(ctx, head, vars, fn);
}

void OperatorBody::operator()(::engine::RunContext& ctx) { head.engine->ExecuteAsync(ctx, head, op->vars, op->fn); }

void DeleteBody::operator()(::engine::RunContext&) { engine->Delete(var); }

void DropIn::Delete(Var* var) {
  const std::unique_ptr<Var> gone(var);
  try {
    const InBody in_body;
    var->on_delete({.context = var->delete_context});
  } catch (...) {
    AllFailures().Add(std::current_exception(), "DeleteVariable");
  }
}

// --- waits

void DropIn::WaitForVar(abi::Var* given) {
  Var* const var = static_cast<Var*>(given);
  if (var->var) engine_.Wait(var->var, kSite);
  Throw(var);
}

void DropIn::WaitForAll() {
  uint64_t before;
  do {
    before = nested_.load(std::memory_order_relaxed);
    engine_.Drain(std::chrono::milliseconds::max());
  } while (nested_.load(std::memory_order_relaxed) != before);
  if (std::exception_ptr first = AllFailures().TakeAll()) std::rethrow_exception(first);
}

void DropIn::Throw(abi::Var* given) {
  if (std::exception_ptr exception = AllFailures().Take(*static_cast<Var*>(given))) std::rethrow_exception(exception);
}

// --- bulks

int DropIn::bulk_size() const { return t_bulk_size; }
int DropIn::set_bulk_size(int size) { return std::exchange(t_bulk_size, size); }

}  // namespace engine_mxnet
