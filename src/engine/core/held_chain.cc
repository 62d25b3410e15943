#include "order/held_chain.h"

#include <algorithm>
#include <array>
#include <vector>

#include "core/core.h"

namespace engine {

HeldOps::HeldOps(Engine& engine) : core_(engine.core_) {
  core_->Retain();
  core_->Slot();  // made before the thread-locals of an owner whose end releases, so that it goes after them
  owner_ = core_->NewOwner();
}

HeldOps::~HeldOps() {
  Release();
  core_->FreeOwner(owner_);
  core_->Release();
}

bool HeldOps::PushApart(const OpDesc& desc, detail::ClosureRef fn, Site site, bool may_wait) {
  Release();
  const uint32_t flags = fn.type->async ? detail::kAsyncOp : 0u;
  return core_->Push({.desc = &desc, .closure = fn, .site = site, .flags = flags, .may_wait = may_wait});
}

bool HeldOps::of(const Engine& engine) const noexcept { return core_ == engine.core_; }
bool HeldOps::closed() const noexcept { return core_->closed(); }

void HeldOps::Release() noexcept {
  if (detail::HeldChain* chain = owner_->chain.load(std::memory_order_acquire)) core_->ReleaseChain(chain);
}

namespace detail {

// On the pass's slot: no pass grows, and where nothing is held nothing is looked at but the vector's ends. Called with tails
// held, so it must not fail: without memory for one more, all chains are released.
void ProductionEnv::Need(Pass& pass, void* holder) try {
  pass.slot->needed.push_back(static_cast<HeldChain*>(holder));
} catch (const std::bad_alloc&) {
  pass.slot->needed.back() = static_cast<HeldChain*>(Protocol::kSeveral);
}

void EngineCore::ReleaseChain(HeldChain* chain) {
  if (!ProductionEnv::Holds(chain)) return;
  {
    ChainLock lock(*chain);
    if (chain->count == 0) return;
    chain->count = 0;
    chain->open.store(false, std::memory_order_relaxed);
  }
  chain->looks = 0;
  const EndSlot slot(*this);
  Pass pass{&*slot};
  StartNext(pass, *chain);
  Dispatch(pass, nullptr);
}

// Gives the next member its start; returns it. Members are ours alone until then.
OpRecord* EngineCore::StartNext(Pass& pass, HeldChain& chain) {
  OpRecord* const op = chain.first;
  // acquire: the last granters, as in GrantMany. More than our own grant is missing: it waits for an op outside.
  if (op->extra.more_behind && op->wait.load(std::memory_order_acquire) > 1 && MustSplit(*pass.slot, chain))
    return Split(pass, chain);
  TakeFirst(*pass.slot, chain);
  Protocol::ReleaseBias(pass, op);
  return op;
}

// The op on this thread has a member behind it and will not end soon: it leaves its chain, which goes on elsewhere.
void EngineCore::LeaveChain(OpRecord* op) {
  if (!op->extra.more_behind) return;
  op->extra.more_behind = false;
  if (op->extra.flags & kDeviceOp) devices_->EndRun(devices_->lane(op->extra.lane));
  Pass pass{&Slot()};
  HeldChain& chain = *op->chain();
  Protocol::GrantInstead(op);
  LetGo(op);
  StartNext(pass, chain);
  Dispatch(pass, nullptr);
}

// `mine` goes on being held: its members may wait for each other.
void EngineCore::ReleaseNeededSlow(ThreadSlot& slot, const HeldChain* mine) {
  while (!slot.needed.empty()) {  // one by one: a release may push
    HeldChain* const chain = slot.needed.back();
    slot.needed.pop_back();
    if (chain == Protocol::kSeveral) {
      ReleaseAllChains(mine);
    } else {
      ReleaseChain(chain);
    }
  }
}

void EngineCore::ReleaseAllChains(const HeldChain* but) {
  // A few at a time: nothing is allocated, and nothing released under the lock.
  std::array<HeldChain*, 32> chains;
  for (size_t from = 0, all = 1; from < all; from += chains.size()) {
    size_t found = 0;
    {
      MutexLock lock(owners_mu_);
      all = owners_.size();
      for (size_t i = from; i < std::min(all, from + chains.size()); ++i)
        if (HeldChain* chain = owners_[i].chain.load(std::memory_order_acquire)) chains[found++] = chain;
    }
    for (size_t i = 0; i < found; ++i)
      if (chains[i] != but) ReleaseChain(chains[i]);
  }
}

HeldOwner* EngineCore::NewOwner() {
  MutexLock lock(owners_mu_);
  if (free_owners_.empty()) {
    free_owners_.reserve(owners_.size() + 1);  // an owner's end needs no memory
    return &owners_.emplace_back();
  }
  HeldOwner* owner = free_owners_.back();
  free_owners_.pop_back();
  return owner;
}

void EngineCore::FreeOwner(HeldOwner* owner) {
  MutexLock lock(owners_mu_);
  owner->chain.store(nullptr, std::memory_order_relaxed);
  free_owners_.push_back(owner);
}

// In a fork's child: what was held is lost with everything else that was pending.
void EngineCore::ForgetChains() {
  vars_.ForEachBlock(kChainClass, kChainClass + 1, [&](void* block) {
    auto* chain = static_cast<HeldChain*>(block);
    chain->lock.store(0, std::memory_order_relaxed);
    chain->open.store(false, std::memory_order_relaxed);
    chain->count = 0;
  });
}

}  // namespace detail
}  // namespace engine
