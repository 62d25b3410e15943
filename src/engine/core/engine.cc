// The public face: each method forwards to EngineCore.
#include "engine/engine.h"

#include <algorithm>
#include <string>
#include <unordered_set>

#include "base/fork.h"
#include "core/completion_state.h"
#include "engine/await.h"
#include "engine/data.h"
#include "engine/device/cuda_stream.h"

namespace engine {

using detail::EngineCore;
using WaitKind = EngineCore::WaitKind;

const char* Version() noexcept { return ENGINE_VERSION; }

namespace {
constinit detail::Mutex g_names_mu;
}  // namespace

void detail::LockNames() NO_THREAD_SAFETY_ANALYSIS { g_names_mu.Lock(); }
void detail::UnlockNames() NO_THREAD_SAFETY_ANALYSIS { g_names_mu.Unlock(); }

Name Name::Intern(std::string_view text) {
  // A program interns few names often, and most of them from the same place in memory.
  thread_local constinit const char* recent[16] = {};
  const char*& last = recent[(reinterpret_cast<uintptr_t>(text.data()) >> 4) % std::size(recent)];
  if (last && std::string_view(last) == text) return FromStatic(last);
  detail::MutexLock lock(g_names_mu);
  // Never destroyed: threads that end after main use names.
  static auto* names = new std::unordered_set<std::string>;
  last = names->emplace(text).first->c_str();
  return FromStatic(last);
}

// --- cancel scopes

CancelScope::CancelScope() : cancelled_(std::make_shared<std::atomic<bool>>(false)) {}
// relaxed: the flag is read when an op starts, and publishes nothing.
void CancelScope::Cancel() noexcept { cancelled_->store(true, std::memory_order_relaxed); }
bool CancelScope::cancelled() const noexcept { return cancelled_->load(std::memory_order_relaxed); }
CancelScope::Entered::Entered(CancelScope& scope) noexcept : outer_(std::exchange(detail::t_scopes.cancel, &scope)) {}
CancelScope::Entered::~Entered() { detail::t_scopes.cancel = outer_; }

void HeldOp::Release() noexcept {
  if (!claim_) return;
  detail::CompletionState* claim = std::exchange(claim_, nullptr);
  detail::EngineCore* core = claim->core;
  if (claim->Inherited()) return core->Release();  // the op belongs to a fork's parent
  core->ReleaseHeld(claim);
  core->DropCompletion(claim);
}

// --- RunContext

namespace {

// PieceOfOp: what a piece of ParallelFor takes over from its op. A piece runs on any thread that oneTBB chooses, and
// counts as inside its op: its pushes are pushes inside the op, under the scopes of the op's thread, and it may not
// wait for the op itself. It may not wait for other ops of its engine either, because a wait has to lend the worker's
// role, which belongs to the op's thread.
struct PieceOfOp {
  detail::BodyFrame* frame;
  detail::KeptError::Content error;  // the op's thread holds the count
  detail::PushScopes scopes;         // without bulk and capture, which only one thread may use
  bool in_piece = true;
};

// InsidePiece: lives on the piece's thread during the piece, while the op's thread is in ParallelFor.
class InsidePiece {
 public:
  explicit InsidePiece(const PieceOfOp& op) noexcept : other_(op) {
    Exchange();
    detail::t_scopes.aside = &other_.scopes;
  }
  ~InsidePiece() { Exchange(); }
  InsidePiece(const InsidePiece&) = delete;

 private:
  void Exchange() noexcept {
    std::swap(detail::t_frame, other_.frame);
    std::swap(detail::t_kept_error, other_.error);
    std::swap(detail::t_scopes, other_.scopes);
    std::swap(detail::t_in_piece, other_.in_piece);
  }
  PieceOfOp other_;  // during the piece: what the thread had before
};

}  // namespace

void RunContext::ParallelFor(size_t n, size_t grain, const std::function<void(size_t, size_t)>& body) {
  const PieceOfOp of{
      detail::t_frame, detail::t_kept_error, {.cancel = detail::t_scopes.cancel, .policy = detail::t_scopes.policy}};
  const auto piece = [&](size_t begin, size_t end) {
    const InsidePiece inside(of);
    body(begin, end);
  };
  if (const auto wide_for = detail::KindOf(op_).wide_for; wide_for && wide_for(*this, n, grain, piece)) return;
  core_->pool(op_->extra.pool).ParallelFor(n, grain, piece, op_->extra.intra_op);
}
const char* RunContext::name() const noexcept { return op_->extra.name; }
uint64_t RunContext::version(VarRef var) const {
  if (const detail::Access* a = EngineCore::FindAccess(op_, var.core())) return a->version();
  const char* var_name = var.core() ? detail::VarName(var.core()) : "null";
  throw UsageError(detail::OpAt(op_->extra.name, op_->site()) + " asks for the version of Var '" + var_name +
                   "', which it does not name; name it in reads, updates or writes");
}
std::vector<NamedVar> RunContext::vars() const {
  if (op_->extra.kind != detail::OpKindId::kPlain) return {};  // these Vars are a whole run's
  std::vector<const detail::Access*> listed(op_->n_access);
  for (size_t i = 0; i < listed.size(); ++i) listed[i] = &op_->accesses()[i];
  std::ranges::sort(listed, {}, &detail::Access::listed);
  std::vector<NamedVar> named;
  for (const detail::Access* a : listed) named.push_back({VarRef(detail::CoreOf(a->var)), a->mode()});
  return named;
}
bool RunContext::cancelled() const noexcept { return EngineCore::Cancelled(op_); }
std::exception_ptr RunContext::error() const {
  if (op_->extra.kind != detail::OpKindId::kPlain) return nullptr;  // a node's Vars are those of its whole run
  if (cancelled()) return detail::MakeCause<CancelledError>("cancelled before it started");
  // Once its Completion has been called, the op's Vars belong to others.
  const bool kept = op_->extra.flags & (detail::kAsyncOp | detail::kDeferred);
  const auto of_async = [&] { return detail::t_kept_error.op == op_ ? detail::t_kept_error.error : nullptr; };
  detail::ErrorRecord* const poison = kept ? of_async() : EngineCore::FirstPoison(op_);
  return poison ? std::make_exception_ptr(poison->Show()) : nullptr;
}
Completion RunContext::Defer() { return core_->Defer(op_); }
bool RunContext::defer_sync() const noexcept { return op_->extra.flags & detail::kDeviceOp; }

namespace {
[[noreturn]] void NotOnDevice(const detail::OpRecord* op, const char* what) {
  throw UsageError(detail::OpAt(op->extra.name, op->site()) + " asks for its " + what +
                   ", but is not placed on a device (Gpu, CopyIn or CopyOut of one that the engine has)");
}
}  // namespace

Stream RunContext::stream() const {
  if (!defer_sync()) NotOnDevice(op_, "stream");
  for (const detail::BodyFrame* f = detail::t_frame; f; f = f->outer) {
    if (f->op != op_) continue;
    if (f->stream) return f->stream;  // the stream of the capture that the body runs under
    if (f->update)
      throw DeviceError(DeviceStatus::Fail(DeviceCode::kCaptureMode, false, 0,
                                           "op '" + std::string(name()) +
                                               "', whose only call was a Launch, asks for its stream while its node "
                                               "gets new arguments: it is captured instead"));
  }
  return core_->devices().StreamOf(op_);
}
Device& RunContext::device() const {
  if (!defer_sync()) NotOnDevice(op_, "device");
  return core_->devices().DeviceOf(op_);
}
CUstream_st* CudaStream(const RunContext& ctx) {
  const Stream own = ctx.stream();
  if (void* native = ctx.device().NativeStream(own)) return static_cast<CUstream_st*>(native);
  throw UsageError(detail::OpText(ctx.name()) + " asks for its CUDA stream, but runs on a device of kind '" +
                   ctx.device().info().kind + "'; use RunContext::stream()");
}

// --- data.h, await.h

void detail::ThrowSetsBesideUses(Name name, Site site) {
  throw UsageError("'" + std::string(name.c_str()) + "' at " + At(site) +
                   " lists Vars in its description beside reads(), updates() or writes(); name each of them there, "
                   "as reads(var)");
}

// Pushes the op held and then releases it. A held op goes to the engine itself, even if a bulk or a capture is open,
// and it never runs inside its push, where the coroutine would be resumed on its own stack.
void detail::PushResume(VarRef var, ClosureRef fn, Placement place, Site site) {
  if (!var) throw UsageError("co_await on a null Var at " + At(site) + "; make Vars with Engine::NewVar");
  EngineCore* const core = var.core()->pusher.core;
  const OpDesc desc{.name = "co_await", .reads = std::span(&var, 1), .place = place, .run_always = true};
  CompletionState* const claim = core->PushHeld({.desc = &desc, .closure = fn, .site = site});
  core->ReleaseHeld(claim);
  core->DropCompletion(claim);
}

// --- Engine

Engine::Engine(EngineOptions options) : core_(new EngineCore(detail::CheckedOptions(std::move(options)))) {}

Engine::~Engine() {
  if (core_->OnOwnThread()) {
    core_->ShutdownElsewhere();
  } else {
    core_->ShutdownOrGiveUp();
  }
  core_->Release();
}

Var Engine::NewVar(std::string_view name, void* tag) { return EngineCore::AdoptVar(core_->NewVar(name, tag)); }

void Engine::Delete(Var& var, Site site) {
  VarRef ref(var);
  core_->CheckVar(ref.core(), "Delete", site);
  if (ref.core()->completer.deleting.exchange(1, std::memory_order_acq_rel))
    throw UsageError(detail::CallAt("Delete", site) + " names Var '" + var.name() +
                     "', which was deleted already; Delete ends a Var for all its handles, once");
  core_->DeleteVar(ref.core());
  var = Var();
}

// --- Redirect

thread_local constinit detail::PushScopes detail::t_scopes{};

Redirect::Redirect(Engine& engine, Submitter& to, Rank rank) noexcept
    : core_(engine.core_),
      to_(&to),
      rank_(rank),
      any_first_(rank == Rank::kFirst || (detail::t_scopes.redirect && detail::t_scopes.redirect->any_first_)),
      outer_(std::exchange(detail::t_scopes.redirect, this)) {}
Redirect::~Redirect() {
  detail::Unlink(&detail::PushScopes::redirect, this, [](Redirect& r) -> Redirect*& { return r.outer_; });
}

bool Redirect::MayTake(const Placement& place) noexcept {
  const Redirect* const innermost = detail::t_scopes.redirect;
  // An op for the host inside a bulk: no bulk takes it, and nothing else is open.
  return innermost && (innermost->any_first_ || place.kind != Placement::Kind::kDefault);
}

Submitter* Redirect::Of(const Engine& engine, const Placement& place) noexcept {
  if (!MayTake(place)) return nullptr;
  Submitter* yielding = nullptr;
  for (const Redirect* r = detail::t_scopes.redirect; r; r = r->outer_) {
    if (r->core_ != engine.core_) continue;
    if (r->rank_ == Rank::kFirst) return r->to_;
    if (!yielding && place.kind != Placement::Kind::kDefault) yielding = r->to_;  // mutant: bulk_takes_ops_for_the_host
  }
  return yielding;
}

namespace {
uint32_t Flags(detail::ClosureRef fn) { return fn.type->async ? uint32_t{detail::kAsyncOp} : 0; }
}  // namespace

// The usual push, inside a bulk too, is two tests and a jump: what else there is lies in a function of its own, so that the
// compiler saves no registers for it here.
void Engine::Submit(const OpDesc& desc, detail::ClosureRef fn, Site site) {
  if (fn.type->async || Redirect::MayTake(desc.place)) [[unlikely]]
    return SubmitUncommon(desc, fn, site);
  core_->PushSync(desc, fn, site);
}
void Engine::SubmitUncommon(const OpDesc& desc, detail::ClosureRef fn, Site site) {
  if (Submitter* to = Redirect::Of(*this, desc.place)) return Forward(*to, desc, fn, site);
  if (!fn.type->async) return core_->PushSync(desc, fn, site);
  core_->Push({.desc = &desc, .closure = fn, .site = site, .flags = Flags(fn)});
}
bool Engine::TrySubmit(const OpDesc& desc, detail::ClosureRef fn, Site site) {
  if (detail::t_scopes.redirect) [[unlikely]]
    if (Submitter* to = Redirect::Of(*this, desc.place)) return TryForward(*to, desc, fn, site);
  return core_->Push({.desc = &desc, .closure = fn, .site = site, .flags = Flags(fn), .may_wait = false});
}
HeldOp Engine::SubmitHeld(const OpDesc& desc, detail::ClosureRef fn, Site site) {
  HeldOp held;
  held.claim_ = core_->PushHeld({.desc = &desc, .closure = fn, .site = site, .flags = Flags(fn) | detail::kHeldBack});
  return held;
}
Operator Engine::MakeOperator(const OpDesc& desc, detail::ClosureRef fn, Site site) {
  Operator op;
  op.state_ = core_->NewOperator({.desc = &desc, .closure = fn, .site = site, .flags = Flags(fn)});
  return op;
}
void Engine::Push(const Operator& op, Site site) { core_->PushOperator(op.state_, nullptr, site); }
void Engine::Push(const Operator& op, int priority, Site site) { core_->PushOperator(op.state_, &priority, site); }

void Engine::Wait(VarRef var, Site site) { core_->Wait(var, WaitKind::kRead, detail::kNever, site); }
bool Engine::WaitFor(VarRef var, Timeout timeout, Site site) {
  return core_->Wait(var, WaitKind::kRead, detail::After(timeout), site);
}
bool Engine::TryWait(VarRef var, Site site) {
  return core_->Wait(var, WaitKind::kLook, detail::Clock::time_point::min(), site);
}
bool Engine::Settled(VarRef var, Site site) const { return core_->SettledNow(var, site); }
void Engine::WaitToWrite(VarRef var, Site site) { core_->Wait(var, WaitKind::kWrite, detail::kNever, site); }
void Engine::WaitAll() { core_->WaitAll(detail::kNever, true); }
bool Engine::WaitAllFor(Timeout timeout) { return core_->WaitAll(detail::After(timeout), true); }
bool Engine::Drain(Timeout timeout) { return core_->WaitAll(detail::After(timeout), false); }
void Engine::ClearError(VarRef var, Site site) { core_->PushClear(var, site); }

void Engine::Stop() { core_->Stop(); }
void Engine::Start() { core_->Start(); }
void Engine::Shutdown() { core_->Shutdown(); }
void Engine::SetPolicy(const PolicyChoice& choice) { core_->SetPolicy(choice); }
PolicyChoice Engine::policy_choice() const { return detail::ChoiceOf(core_->Stamp()); }
Placement Engine::Pool(std::string_view name) const { return core_->pools().Named(name); }
int Engine::workers() const noexcept { return core_->options().workers; }
EngineStats Engine::stats() const {
  core_->AskDevices();
  return core_->stats();
}
DeviceStats Engine::device_stats() const {
  core_->AskDevices();
  return core_->devices().stats();
}
Device& Engine::device(int index) const { return core_->devices().device(static_cast<uint32_t>(index)); }
void Engine::StartTrace() { core_->StartTrace(); }
Trace Engine::StopTrace() { return core_->StopTrace(); }
std::string Engine::DescribePending() const {
  core_->AskDevices();
  return core_->DescribePending();
}

}  // namespace engine
