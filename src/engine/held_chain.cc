#include "held_chain.h"

#include "core.h"

namespace engine {

HeldOps::HeldOps(Engine& engine) : core_(engine.core_) {
  core_->Retain();
  core_->Slot();  // made before the thread-locals of an owner whose end releases, so that it goes after them
}

HeldOps::~HeldOps() {
  Release();
  core_->Release();
}

uint32_t HeldOps::PushErased(const OpDesc& desc, detail::ClosureRef fn, Site site, bool may_wait) {
  if (desc.place.kind == Placement::Kind::kDefault && core_->Stamp().policy != Policy::kThreaded) [[unlikely]]
    return PushApart(desc, fn, Apart::kSync, site, may_wait) ? 0 : kNoRoom;
  return core_->PushChained(
      {.desc = &desc, .closure = fn, .site = site, .flags = detail::kInChain, .may_wait = may_wait}, *this);
}

bool HeldOps::PushApart(const OpDesc& desc, detail::ClosureRef fn, Apart how, Site site, bool may_wait) {
  Release();
  const uint32_t flags = how == Apart::kAsync ? detail::kAsyncOp : 0u;
  return core_->Push({.desc = &desc, .closure = fn, .site = site, .flags = flags, .may_wait = may_wait});
}

bool HeldOps::of(const Engine& engine) const noexcept { return core_ == engine.core_; }
bool HeldOps::closed() const noexcept { return core_->closed(); }

void HeldOps::Release() noexcept {
  if (detail::HeldChain* chain = chain_.load(std::memory_order_acquire)) core_->ReleaseChain(chain);
}

namespace detail {

// On the pass's slot: no pass grows, and where nothing is held nothing is looked at but the vector's ends.
void ProductionEnv::Need(Pass& pass, void* holder) { pass.slot->needed.push_back(static_cast<HeldChain*>(holder)); }

// Registers a member. How many the chain holds then; 0: somebody needed it meanwhile, and it has been released.
uint32_t EngineCore::PushChained(const PushRequest& request, HeldOps& held) {
  ThreadSlot& slot = Slot();
  OpRecord* op = NewChained(slot, request);
  if (!op) return HeldOps::kNoRoom;
  HeldChain* chain = held.chain_.load(std::memory_order_relaxed);
  uint32_t count = 0;
  if (chain) count = Append(slot, op, *chain, &held.ticket_, false);
  if (count == 0) {  // none yet, or released: its block may be another owner's by now
    chain = static_cast<HeldChain*>(slot.var_cache.Get(kChainClass));
    if (!chains_used_.load(std::memory_order_relaxed)) chains_used_.store(true, std::memory_order_relaxed);
    try {
      count = Append(slot, op, *chain, &held.ticket_, true);
    } catch (...) {
      slot.var_cache.Return(kChainClass, chain);
      throw;
    }
    // release: the chain as it was opened. Partner: the acquire in Release.
    held.chain_.store(chain, std::memory_order_release);
  }
  ReleaseNeeded(slot, chain);
  // Somebody waits for everything: now, because nobody would tell us later. Partners: the HeavyFence behind the
  // announcements in drain.cc and back_pressure.cc, which then look at all chains.
  LightFence();
  if (draining_.load(std::memory_order_relaxed) | room_waiters_.load(std::memory_order_relaxed) |
      static_cast<uint32_t>(phase_.load(std::memory_order_relaxed) != Phase::kOpen)) [[unlikely]] {
    ReleaseChain(chain);
    return 0;
  }
  return count;
}

// 0: the chain is not (or no longer) the owner's, and the op not registered.
uint32_t EngineCore::Append(ThreadSlot& slot, OpRecord* op, HeldChain& chain, uint64_t* ticket, bool open) {
  ChainLock lock(chain);
  if (open) {
    *ticket = ++chain.ticket;
    chain.first = chain.last = nullptr;
    chain.count = 0;
  } else if (chain.count == 0 || chain.ticket != *ticket) {
    return 0;
  }
  op->chain() = &chain;
  op->extra.more_behind = op->extra.merged = op->extra.replayed = false;
  RegisterChained(slot, op);  // throws for a deleted Var, and has changed nothing then
  if (chain.last) {
    chain.last->extra.more_behind = true;
    chain.last->extra.next = op;
  } else {
    chain.first = op;
  }
  chain.last = op;
  return ++chain.count;
}

void EngineCore::ReleaseChain(HeldChain* chain) {
  {
    ChainLock lock(*chain);
    if (chain->count == 0) return;
    chain->count = 0;
  }
  Pass pass{&Slot()};
  StartNext(pass, *chain);
  Dispatch(pass, nullptr);
}

// Gives the next member its start. The chain's block goes with the last: nobody looks at it after that but through stale
// pointers. The member is ours alone until then.
OpRecord* EngineCore::StartNext(Pass& pass, HeldChain& chain) {
  OpRecord* const op = chain.first;
  if (op->extra.more_behind) {
    chain.first = op->extra.next;
  } else {
    pass.slot->var_cache.Return(kChainClass, &chain);
  }
  Protocol::ReleaseBias(pass, op);
  return op;
}

// The op on this thread has a member behind it and will not end soon: it leaves its chain, which goes on elsewhere.
void EngineCore::LeaveChain(OpRecord* op) {
  if (!op->extra.more_behind) return;
  op->extra.more_behind = false;
  if (op->extra.flags & kDeviceOp) devices_->EndRun(devices_->lane(op->extra.lane));
  Pass pass{&Slot()};
  StartNext(pass, *op->chain());
  Dispatch(pass, nullptr);
}

// `mine` goes on being held: its members may wait for each other.
void EngineCore::ReleaseNeededSlow(ThreadSlot& slot, const HeldChain* mine) {
  std::vector<HeldChain*> needed;
  needed.swap(slot.needed);  // a release may push
  for (HeldChain* chain : needed) {
    if (chain == Protocol::kSeveral) {
      ReleaseAllChains(mine);
    } else {
      ReleaseChain(chain);
    }
  }
  needed.clear();
  if (slot.needed.empty()) slot.needed.swap(needed);  // keeps the memory
}

void EngineCore::ReleaseAllChains(const HeldChain* but) {
  if (!chains_used_.load(std::memory_order_relaxed)) return;
  std::vector<HeldChain*> chains;
  vars_.ForEachBlock(kChainClass, kChainClass + 1,
                     [&](void* block) { chains.push_back(static_cast<HeldChain*>(block)); });
  for (HeldChain* chain : chains)
    if (chain != but) ReleaseChain(chain);
}

// In a fork's child: what was held is lost with everything else that was pending.
void EngineCore::ForgetChains() {
  vars_.ForEachBlock(kChainClass, kChainClass + 1, [&](void* block) {
    auto* chain = static_cast<HeldChain*>(block);
    chain->lock.store(0, std::memory_order_relaxed);
    chain->count = 0;
  });
}

}  // namespace detail
}  // namespace engine
