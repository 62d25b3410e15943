#include "core/op_chains.h"

#include <algorithm>
#include <array>
#include <span>

#include "core/core.h"
#include "engine/spi/held_ops.h"

namespace engine {

HeldOps::HeldOps(Engine& engine) : core_(engine.core_) {
  core_->Slot();  // made now, so that it outlives the caller's thread-local objects, whose destructors may release
  owner_ = core_->chains().NewOwner();
  core_->Retain();
}

HeldOps::~HeldOps() {
  Release();
  core_->chains().FreeOwner(owner_);
  core_->Release();
}

bool HeldOps::PushPast(const OpDesc& desc, detail::ClosureRef fn, Site site, bool may_wait) {
  const uint32_t flags = fn.type->async ? detail::kAsyncOp : 0u;
  return core_->Push({.desc = &desc, .closure = fn, .site = site, .flags = flags, .may_wait = may_wait});
}

bool HeldOps::of(const Engine& engine) const noexcept { return core_ == engine.core_; }
bool HeldOps::closed() const noexcept { return core_->closed(); }

void HeldOps::Release() noexcept {
  if (detail::OpChain* chain = owner_->chain.load(std::memory_order_acquire)) core_->chains().Release(chain);
}

namespace detail {

// Lists the chain in the slot; ReleaseQueuedBehind releases it after the registration. Called while tails are locked,
// so it must not fail: without memory for one more entry, the last entry becomes "all chains".
void ProductionEnv::MustRelease(Pass& pass, void* holder) try {
  pass.slot->queued_behind.push_back(static_cast<OpChain*>(holder));
} catch (const std::bad_alloc&) {
  pass.slot->queued_behind.back() = static_cast<OpChain*>(Protocol::kSeveral);
}

void OpChains::Release(OpChain* chain) {
  if (!ProductionEnv::Holds(chain)) return;
  {
    ChainLock lock(*chain);
    if (chain->count == 0) return;
    chain->count = 0;
    chain->open.store(false, std::memory_order_relaxed);
  }
  chain->order = OpChain::kNotLookedAt;
  const EndSlot slot(core_.slots());
  Pass pass{&*slot};
  StartNext(pass, *chain);
  core_.Dispatch(pass, nullptr);
}

namespace {

// Whether the member waits for more than its start. acquire: as in GrantMany.
bool IsBlocked(const OpRecord* op) { return op->wait.load(std::memory_order_acquire) > 1; }

std::span<const Access> AccessesOf(const OpRecord* op) { return {op->accesses(), op->n_access}; }
bool ByVar(const Access& a, const Access& b) { return a.var < b.var; }

// Whether `op` conflicts with `before`, an earlier member that has not ended. Both list their Vars in order of address.
bool IsBehind(const OpRecord* before, const OpRecord* op) {
  const std::span<const Access> first = AccessesOf(before), then = AccessesOf(op);
  for (auto a = first.begin(), b = then.begin(); a != first.end() && b != then.end();) {
    if (a->var == b->var && !(a->read() && b->read())) return true;
    a->var < b->var ? ++a : ++b;
  }
  return false;
}

// Whether `op` names all Vars of `head`, an earlier member. Then it waits for whatever `head` waits for, and cannot be
// ready before it.
bool NamesAllOf(const OpRecord* head, const OpRecord* op) {
  const std::span<const Access> named = AccessesOf(op), all = AccessesOf(head);
  return std::includes(named.begin(), named.end(), all.begin(), all.end(), ByVar);
}

// The first member is blocked. Returns whether a later member might be ready earlier; no member is that waits for the
// first one, directly or by way of others.
bool OthersMayBeReady(OpChain& chain) {
  if (chain.order == OpChain::kEachBehindTheOneBefore) return false;
  if (chain.order == OpChain::kLookedAt) return true;  // one look a chain, so that its cost stays linear
  chain.order = OpChain::kEachBehindTheOneBefore;
  std::array<const OpRecord*, tuning::kMostLooksBack> seen;
  size_t n = 0;
  for (const OpRecord* op = chain.first; op->extra.more_behind;) {
    seen[n++ % seen.size()] = op;
    op = op->extra.next;
    const size_t most = std::min(n, seen.size());
    size_t back = 1;
    while (back <= most && !IsBehind(seen[(n - back) % seen.size()], op)) ++back;
    if (back > 1) chain.order = OpChain::kLookedAt;                // mutant: row_taken_for_granted
    if (back > most && !NamesAllOf(chain.first, op)) return true;  // mutant: chain_never_waits
  }
  return false;
}

// Called when the op leaves its chain, whose block may soon be another chain. relaxed: whoever gets the block for a new
// chain is ordered behind this store by the way that the block takes.
void LetGo(OpRecord* op) { std::atomic_ref(op->chain()).store(&g_let_go, std::memory_order_relaxed); }

// Takes the first member out. With the last member the chain's block is given back; only stale pointers lead there
// then.
void TakeFirst(ThreadSlot& slot, OpChain& released) {
  OpRecord* const op = released.first;
  if (op->extra.more_behind) [[likely]] {
    released.first = op->extra.next;
  } else {
    LetGo(op);  // mutant: started_member_stays_in_its_chain
    slot.var_cache.Return(kChainClass, &released);
  }
}

// Keeps in the chain only the members that wait for nothing but their start, so that nothing blocks it any more. Every
// other member leaves, and starts by itself when its last grant comes. Starts and returns the first member that stays,
// or returns null.
OpRecord* KeepReady(Pass& pass, OpChain& chain) {
  OpRecord *next = chain.first, *last = nullptr;
  chain.first = nullptr;
  for (bool more = true; more;) {
    OpRecord* const op = next;
    more = op->extra.more_behind;
    next = op->extra.next;
    op->extra.more_behind = false;
    if (IsBlocked(op)) {  // mutant: blocked_member_kept
      LetGo(op);
      Protocol::ReleaseBias(pass, op);
      continue;
    }
    if (last) {
      last->extra.next = op;
      last->extra.more_behind = true;
    } else {
      chain.first = op;
    }
    last = op;
  }
  if (!last) {
    pass.slot->var_cache.Return(kChainClass, &chain);
    return nullptr;
  }
  OpRecord* const op = chain.first;
  TakeFirst(*pass.slot, chain);
  Protocol::ReleaseBias(pass, op);
  return op;
}

}  // namespace

OpRecord* OpChains::StartNext(Pass& pass, OpChain& chain) {
  OpRecord* const op = chain.first;
  if (op->extra.more_behind && IsBlocked(op) && OthersMayBeReady(chain))
    return KeepReady(pass, chain);  // mutant: chain_waits_for_any_member
  TakeFirst(*pass.slot, chain);
  Protocol::ReleaseBias(pass, op);
  return op;
}

void OpChains::Leave(OpRecord* op) {
  if (!op->extra.more_behind) return;  // mutant: chain_not_left_by_a_wait
  op->extra.more_behind = false;
  core_.devices().EndDispatchOf(op);
  Pass pass{&core_.Slot()};
  OpChain& chain = *op->chain();
  LetGo(op);
  StartNext(pass, chain);
  core_.Dispatch(pass, nullptr);
}

void OpChains::ReleaseQueuedBehindSlow(ThreadSlot& slot, const OpChain* mine) {
  OpChains& chains = slot.core->chains();
  // Taken one by one, because a release may run ops that push.
  while (!slot.queued_behind.empty()) {  // mutant: needed_chain_not_released
    OpChain* const chain = slot.queued_behind.back();
    slot.queued_behind.pop_back();
    if (chain == Protocol::kSeveral) {
      chains.ReleaseAll(mine);  // mutant: several_holders_not_released
    } else {
      chains.Release(chain);
    }
  }
}

void OpChains::ReleaseAll(const OpChain* but) {
  // A few chains at a time, so that nothing is allocated, and nothing is released under the lock.
  std::array<OpChain*, 32> chains;
  for (size_t from = 0, all = 1; from < all; from += chains.size()) {
    size_t found = 0;
    {
      MutexLock lock(mu_);
      all = owners_.size();
      for (size_t i = from; i < std::min(all, from + chains.size()); ++i)
        if (OpChain* chain = owners_[i].chain.load(std::memory_order_acquire)) chains[found++] = chain;
    }
    for (size_t i = 0; i < found; ++i)
      if (chains[i] != but) Release(chains[i]);
  }
}

ChainOwner* OpChains::NewOwner() {
  MutexLock lock(mu_);
  if (free_.empty()) {
    free_.reserve(owners_.size() + 1);  // so that FreeOwner needs no memory
    return &owners_.emplace_back();
  }
  ChainOwner* owner = free_.back();
  free_.pop_back();
  return owner;
}

void OpChains::FreeOwner(ChainOwner* owner) {
  MutexLock lock(mu_);
  owner->chain.store(nullptr, std::memory_order_relaxed);
  free_.push_back(owner);
}

// The ops that the chains held are lost, as everything else that was pending.
void OpChains::AfterForkInChild(Arena& vars) {
  mu_.Unlock();
  vars.ForEachBlock(kChainClass, kChainClass + 1, [&](void* block, uint32_t) {
    auto* chain = static_cast<OpChain*>(block);
    chain->lock.store(0, std::memory_order_relaxed);
    chain->open.store(false, std::memory_order_relaxed);
    chain->count = 0;
  });
}

}  // namespace detail
}  // namespace engine
