#include "engine/bulk.h"

#include <string>

#include "state.h"

namespace engine {
namespace {

uint32_t CheckedLimit(int limit) {
  if (limit < 0 || limit > kMaxBulkSize)
    throw UsageError("a bulk of " + std::to_string(limit) + " ops was asked for; 0 (no bulk) to " +
                     std::to_string(kMaxBulkSize) + " are allowed");
  return static_cast<uint32_t>(limit);
}

bool Same(const Placement& a, const Placement& b) { return a.kind == b.kind && a.index == b.index; }

}  // namespace

Bulk::Bulk(Engine& engine, int limit)
    : limit_(CheckedLimit(limit)),
      state_(std::make_shared<State>(engine)),
      redirect_(engine, *this, Redirect::Rank::kYields) {}

Bulk::~Bulk() {
  Release();
  // In a fork's child the parent's watcher may be locked for ever, and nobody looks through it.
  if (state_->silence == &bulk::Silence::Get()) state_->silence->Unwatch(state_.get());
}

void Bulk::Release() noexcept {
  const uint64_t mark = state_->mark.load(std::memory_order_relaxed);
  if (!(mark & 1)) return;
  state_->mark.store(mark + 1, std::memory_order_relaxed);
  state_->ops.Release();
}

// What can be held with what is held now, and no more than that; anything else is PutOther's.
void Bulk::Submit(const OpDesc& desc, detail::ClosureRef fn, Site site) {
  if (fn.type->async || limit_ < 2 || !Same(desc.place, place_) || desc.priority != priority_) [[unlikely]] {
    PutOther(desc, fn, site, true);
    return;
  }
  const uint32_t held = state_->ops.PushErased(desc, fn, site);
  // A push that waits for room may run ops on this thread, which may push through us: only now is it known what is held.
  if (held < 2 || held >= limit_) [[unlikely]] {
    Note(desc, held);
    return;
  }
  const uint64_t mark = state_->mark.load(std::memory_order_relaxed) | 1;
  state_->mark.store(mark + 2, std::memory_order_relaxed);
}

bool Bulk::TrySubmit(const OpDesc& desc, detail::ClosureRef fn, Site site) { return PutOther(desc, fn, site, false); }

bool Bulk::PutOther(const OpDesc& desc, detail::ClosureRef fn, Site site, bool may_wait) {
  if (fn.type->async || limit_ < 2 || desc.place.kind == Placement::Kind::kIo) {
    Release();
    return state_->ops.PushApart(desc, fn, site, may_wait);
  }
  if (!Same(desc.place, place_) || desc.priority != priority_) Release();
  const uint32_t held = may_wait ? state_->ops.PushErased(desc, fn, site) : state_->ops.TryPushErased(desc, fn, site);
  if (held == HeldOps::kNoRoom) return false;
  Note(desc, held);
  return true;
}

// The op was pushed, and so many are held now.
void Bulk::Note(const OpDesc& desc, uint32_t held) {
  State& state = *state_;
  const uint64_t mark = (state.mark.load(std::memory_order_relaxed) | 1) + 1;
  if (held > 1) {
    state.mark.store(mark + 1, std::memory_order_relaxed);
    if (held >= limit_) Release();
    return;
  }
  place_ = desc.place;
  priority_ = desc.priority;
  if (held == 0) {
    state.mark.store(mark, std::memory_order_relaxed);
  } else {
    state.mark.store(mark + 1, std::memory_order_seq_cst);
    Opened();
  }
}

// The op has been pushed: nothing may fail any more. Where nobody can watch the bulk, nothing is held in it.
void Bulk::Opened() noexcept {
  bulk::Silence& silence = bulk::Silence::Get();
  if (state_->silence != &silence) [[unlikely]] {
    if (!silence.Watch(state_)) return Release();
    state_->silence = &silence;
  }
  if (!silence.Opened()) Release();
}

}  // namespace engine
