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
  // In a fork's child the parent's IdleBulks may be locked for ever, and its thread is gone: this bulk is not in the
  // child's list.
  if (state_->idle_bulks == &bulk::IdleBulks::Get()) state_->idle_bulks->Unwatch(state_.get());
}

void Bulk::Release() noexcept {
  const uint64_t mark = state_->mark.load(std::memory_order_relaxed);
  if (!(mark & 1)) return;
  state_->mark.store(mark + 1, std::memory_order_relaxed);
  state_->ops.Release();
}

// The fast path: the op can join the ops that are held now. PutOther does every other case. A bulk that holds nothing yet has
// no place, which is the same as no op's for a device.
void Bulk::Submit(const OpDesc& desc, detail::ClosureRef fn, Site site) {
  if (fn.type->async || !Same(desc.place, place_) || desc.priority != priority_) [[unlikely]] {
    PutOther(desc, fn, site, true);
    return;
  }
  const uint32_t held = state_->ops.PushErased(desc, fn, site);
  // A push that waits for room may run ops on this thread, and these may push through this Bulk: so `held` is known
  // only now.
  if (held < 2 || held >= limit_) [[unlikely]] {
    Note(desc, held);
    return;
  }
  const uint64_t mark = state_->mark.load(std::memory_order_relaxed) | 1;
  state_->mark.store(mark + 2, std::memory_order_relaxed);
}

bool Bulk::TrySubmit(const OpDesc& desc, detail::ClosureRef fn, Site site) { return PutOther(desc, fn, site, false); }

bool Bulk::PutOther(const OpDesc& desc, detail::ClosureRef fn, Site site, bool may_wait) {
  const bool held_back = limit_ >= 2 && state_->ops.Holds(desc.place);  // mutant: op_for_the_host_in_a_bulk
  if (!held_back) return state_->ops.PushPast(desc, fn, site, may_wait);
  if (fn.type->async) {
    Release();
    return state_->ops.PushPast(desc, fn, site, may_wait);
  }
  if (!Same(desc.place, place_) || desc.priority != priority_) Release();  // mutant: bulk_keeps_other_placements
  const uint32_t held = may_wait ? state_->ops.PushErased(desc, fn, site) : state_->ops.TryPushErased(desc, fn, site);
  if (held == HeldOps::kNoRoom) return false;
  Note(desc, held);
  return true;
}

// After a push: `held` ops are held now.
void Bulk::Note(const OpDesc& desc, uint32_t held) {
  State& state = *state_;
  const uint64_t mark = (state.mark.load(std::memory_order_relaxed) | 1) + 1;
  if (held > 1) {
    state.mark.store(mark + 1, std::memory_order_relaxed);
    if (held >= limit_) Release();  // mutant: bulk_without_limit
    return;
  }
  place_ = desc.place;
  priority_ = desc.priority;
  if (held == 0) {
    state.mark.store(mark, std::memory_order_relaxed);
  } else {
    state.mark.store(mark + 1, std::memory_order_seq_cst);
    Opened();  // mutant: bulk_never_opened
  }
}

// The op has been pushed, so nothing may fail any more. If no thread can watch the bulk, its ops are released at once.
void Bulk::Opened() noexcept {
  bulk::IdleBulks& idle_bulks = bulk::IdleBulks::Get();
  if (state_->idle_bulks != &idle_bulks) [[unlikely]] {
    if (!idle_bulks.Watch(state_)) return Release();
    state_->idle_bulks = &idle_bulks;
  }
  if (!idle_bulks.Opened()) Release();
}

}  // namespace engine
