// Pushes of MXNet, as pushes of the engine.
#include <chrono>
#include <memory>
#include <span>
#include <string>

#include "completion.h"
#include "drop_in.h"
#include "here.h"
#include "names.h"
#include "profiler.h"

namespace engine_mxnet {
namespace {

using ::engine::Site;
using ::engine::VarRef;

constexpr Site kSite("mxnet", 0);

VarRef RefOf(const abi::Var* var) { return static_cast<const Var*>(var)->var; }
bool IsScratch(const abi::Var* var) { return static_cast<const Var*>(var)->scratch.load(std::memory_order_relaxed); }

// The handles of an op's Vars, without those of scratch memory, on the stack where they are few.
class Refs {
 public:
  Refs(const abi::Vars& reads, const abi::Vars& updates) : reads_(reads.size()) {
    std::byte* memory = few_;
    if (reads.size() + updates.size() > kFew) [[unlikely]] {
      more_ = std::make_unique<std::byte[]>((reads.size() + updates.size()) * sizeof(VarRef));
      memory = more_.get();
    }
    auto* to = reinterpret_cast<VarRef*>(memory);
    begin_ = to;
    for (const abi::Var* var : reads) std::construct_at(to++, RefOf(var));
    for (const abi::Var* var : updates)
      if (!IsScratch(var)) [[likely]]
        std::construct_at(to++, RefOf(var));
    all_ = static_cast<size_t>(to - begin_);
  }
  bool empty() const { return !all_; }
  std::span<const VarRef> reads() const { return {begin_, reads_}; }
  std::span<const VarRef> updates() const { return {begin_ + reads_, all_ - reads_}; }

 private:
  static constexpr size_t kFew = 16;
  const size_t reads_;
  size_t all_;
  const VarRef* begin_;
  alignas(VarRef) std::byte few_[kFew * sizeof(VarRef)];
  std::unique_ptr<std::byte[]> more_;
};

}  // namespace

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

bool DropIn::IsPlain(abi::Context context, abi::Property property, bool wait) const {
  return context.device_type == abi::kCpu && context.device_id == 0 && property != abi::Property::kCpuPrioritized &&
         property != abi::Property::kNoSkip && !wait && !naive_;
}

// What an op holds: its function, which comes back; of one of C nothing has to be destroyed.
template <class... Args>
Returning<abi::Function<Args...>> Kept(abi::Function<Args...>&& fn) {
  return Returning(std::move(fn));
}
template <class... Args>
abi::CFunction<Args...> Kept(const abi::CFunction<Args...>& fn) {
  return fn;
}

void DropIn::CountNested() {
  if (t_here.depth) ledger_.nested.fetch_add(1, std::memory_order_relaxed);
}

template <class Fn>
void DropIn::PushSpecial(::engine::OpDesc& desc, Fn&& fn, abi::Context context, abi::Property property, bool wait) {
  if (context.device_type == abi::kGpu)
    throw dmlc::Error("engine.mxnet: op '" + std::string(desc.name.c_str()) +
                      "' is for a GPU; this engine runs MXNet's ops on CPUs only");
  const bool prioritized = property == abi::Property::kCpuPrioritized;
  if ((prioritized || context.device_id > 0) && ::engine::UsesWorkers(engine_.policy()))
    desc.place = prioritized ? prioritized_ : devices_[static_cast<size_t>(context.device_id - 1) % devices_.size()];
  const std::shared_ptr<NaivePush> naive = naive_ ? std::make_shared<NaivePush>() : nullptr;
  const bool always = wait || property == abi::Property::kNoSkip;
  engine_.Push(desc,
               SpecialBody<std::decay_t<Fn>>{naive, {context, always, naive.get(), &ledger_}, std::forward<Fn>(fn)},
               kSite);
  if (!naive) return;
  // acquire: `thrown`. Partner: the release of who ran the function, or called back.
  if (!naive->ended.load(std::memory_order_acquire)) engine_.Drain(std::chrono::milliseconds::max());
  if (naive->thrown) std::rethrow_exception(naive->thrown);
}

template <class Fn>
void DropIn::PushFunction(Fn&& fn, abi::Context context, const abi::Vars& reads, const abi::Vars& updates,
                          abi::Property property, int priority, ::engine::Name name, bool wait) {
  if (Refused()) [[unlikely]]
    return;
  CountNested();
  const Refs refs(reads, updates);
  ::engine::OpDesc desc{.name = name, .reads = refs.reads(), .updates = refs.updates(), .priority = LevelOf(priority)};
  if (!t_here.depth) Returns::Push();
  auto kept = Kept(std::move(fn));
  using Held = decltype(kept);
  if (!IsPlain(context, property, wait)) [[unlikely]]
    return PushSpecial(desc, std::move(kept), context, property, wait);
  if (refs.empty()) return engine_.Push(desc, VarlessBody<Held>{&ledger_, std::move(kept)}, kSite);
  engine_.Push(desc, PlainBody<Held>{std::move(kept)}, kSite);
}

void DropIn::PushSync(abi::SyncFn fn, abi::Context context, const abi::Vars& reads, const abi::Vars& updates,
                      abi::Property property, int priority, const char* name) {
  // Inside a function of the naive engine all that it could wait for has ended.
  if (naive_ && t_here.depth) [[unlikely]] {
    const Inside inside;
    return fn({.context = context});
  }
  const ::engine::Name named = NameOf(name, "PushSync");
  if (abi::SyncCFn c; fn.TakeOut(c)) return PushFunction(c, context, reads, updates, property, priority, named, false);
  PushFunction(std::move(fn), context, reads, updates, property, priority, named, false);
}

void DropIn::PushAsync(abi::AsyncFn fn, abi::Context context, const abi::Vars& reads, const abi::Vars& updates,
                       abi::Property property, int priority, const char* name, bool wait) {
  if (naive_ && t_here.depth) [[unlikely]]
    return RunHere(fn, context);
  const ::engine::Name named = NameOf(name, "PushAsync");
  if (abi::AsyncCFn c; fn.TakeOut(c)) return PushFunction(c, context, reads, updates, property, priority, named, wait);
  PushFunction(std::move(fn), context, reads, updates, property, priority, named, wait);
}

// --- reusable operators

abi::Opr* DropIn::NewOperator(abi::AsyncFn fn, const abi::Vars& reads, const abi::Vars& updates, abi::Property property,
                              const char* name, bool wait) {
  auto op = std::make_unique<Operator>(Operator{.fn = std::make_shared<const abi::AsyncFn>(std::move(fn)),
                                                .property = property,
                                                .name = NameOf(name, "Operator"),
                                                .is_wait = wait,
                                                .refs = {},
                                                .reads = reads.size(),
                                                .plain = {}});
  for (const abi::Var* var : reads) op->refs.push_back(RefOf(var));
  for (const abi::Var* var : updates)
    if (!IsScratch(var)) op->refs.push_back(RefOf(var));
  if (IsPlain({}, property, wait) && !op->refs.empty() && !Refused()) {
    const std::span<const VarRef> refs(op->refs);
    op->plain =
        engine_.NewOperator({.name = op->name, .reads = refs.first(op->reads), .updates = refs.subspan(op->reads)},
                            PlainBody<SharedFn>{op->fn}, kSite);
  }
  return reinterpret_cast<abi::Opr*>(op.release());
}

void DropIn::DeleteOperator(abi::Opr* op) { delete reinterpret_cast<Operator*>(op); }

void DropIn::Push(abi::Opr* given, abi::Context context, int priority, bool profiling) {
  if (profiling) [[unlikely]]
    SayThatTheProfilerSeesNoOps();
  const Operator& op = *reinterpret_cast<Operator*>(given);
  if (naive_ && t_here.depth) return RunHere(*op.fn, context);
  if (Refused()) [[unlikely]]
    return;
  CountNested();
  const int level = LevelOf(priority);
  if (op.plain && IsPlain(context, op.property, op.is_wait)) [[likely]]
    return engine_.Push(op.plain, level, kSite);
  const std::span<const VarRef> refs(op.refs);
  ::engine::OpDesc desc{
      .name = op.name, .reads = refs.first(op.reads), .updates = refs.subspan(op.reads), .priority = level};
  PushSpecial(desc, op.fn, context, op.property, op.is_wait);
}

}  // namespace engine_mxnet
