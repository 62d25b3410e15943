// Which slot a thread has in which engine. Given back when the thread ends; see per_thread.h for what comes after that.
#include "base/per_thread.h"
#include "core/engine_thread.h"

namespace engine::detail {

thread_local constinit uint64_t t_engine_id = 0;
thread_local constinit ThreadSlot* t_slot = nullptr;

namespace {

// What this thread has in each engine. The current one is cached for the push path.
struct SlotEntry {
  uint64_t id;
  ThreadSlot* slot;
  std::shared_ptr<Liveness> engine;
};

// On an engine's own thread: the slot that goes with what it does there. Not in the table: it needs no memory, and is not this
// thread's to return.
struct RoleSlot {
  uint64_t id = 0;
  ThreadSlot* slot = nullptr;
};
thread_local constinit RoleSlot t_role;

struct SlotTable {
  std::vector<SlotEntry> entries;
  ~SlotTable() {
    t_engine_id = 0;  // another thread may take the slot from here on
    for (SlotEntry& e : entries) {
      MutexLock lock(e.engine->mu);
      if (e.engine->core) e.engine->core->ReturnSlot(e.slot);
    }
  }
};

void Remember(SlotEntry entry) {
  std::vector<SlotEntry>& entries = PerThread<SlotTable>::Get().entries;
  std::erase_if(entries, [&](SlotEntry& e) {
    if (e.id == entry.id) return true;
    MutexLock lock(e.engine->mu);
    return e.engine->core == nullptr;  // an engine that has gone
  });
  entries.push_back(std::move(entry));
  t_engine_id = entries.back().id;
  t_slot = entries.back().slot;
}

}  // namespace

ThreadSlot& EngineCore::FindSlot() {
  const uint64_t id = id_.load(std::memory_order_relaxed);
  if (t_role.id == id) {
    t_engine_id = id;
    t_slot = t_role.slot;
    return *t_slot;
  }
  bool found = false;
  for (SlotEntry& e : PerThread<SlotTable>::Get().entries) {
    if (e.id != id) continue;
    t_engine_id = id;
    t_slot = e.slot;
    found = true;
    break;
  }
  if (!found) {
    ThreadSlot* const slot = TakeSlot();
    try {
      Remember({id, slot, liveness_});
    } catch (...) {
      ReturnSlot(slot);
      throw;
    }
  }
  // First use after a fork. A closed engine needs no threads, and would not join them.
  if (threads_lost_.exchange(false, std::memory_order_acq_rel) && !closed()) StartLostThreads();
  return *t_slot;
}

ThreadSlot* EngineCore::TakeSlot() {
  MutexLock lock(slots_mu_);
  for (auto& s : slots_) {
    if (s->taken || s->worker) continue;
    s->taken = true;
    return s.get();
  }
  slots_.push_back(std::make_unique<ThreadSlot>(this, ops_, vars_, completions_));
  slots_.back()->taken = true;
  return slots_.back().get();
}

void EngineCore::ReturnSlot(ThreadSlot* slot) {
  slot->cache.Flush();
  slot->var_cache.Flush();
  slot->completion_cache.Flush();
  MutexLock lock(slots_mu_);
  slot->taken = false;
}

// Not for the analysis: the lock is held as long as the EndSlot lives. What it calls finds the spare slot as this thread's.
EngineCore::EndSlot::EndSlot(EngineCore& core) noexcept NO_THREAD_SAFETY_ANALYSIS : core_(core) {
  try {
    slot_ = &core.Slot();
  } catch (...) {
    core.spare_mu_.Lock();
    spare_ = true;
    slot_ = core.spare_slot_;
    t_engine_id = core.id_.load(std::memory_order_relaxed);
    t_slot = slot_;
  }
}

EngineCore::EndSlot::~EndSlot() NO_THREAD_SAFETY_ANALYSIS {
  if (!spare_) return;
  t_engine_id = 0;
  core_.spare_mu_.Unlock();
}

void EngineCore::RememberSlot(ThreadSlot* slot) noexcept {
  t_role = {id_.load(std::memory_order_relaxed), slot};
  t_engine_id = t_role.id;
  t_slot = slot;
}

void EngineCore::ForgetSlot(uint64_t id) {
  t_engine_id = 0;
  if (t_role.id == id) t_role = {};
  if (SlotTable* table = PerThread<SlotTable>::Made())
    std::erase_if(table->entries, [&](const SlotEntry& e) { return e.id == id; });
}

bool EngineCore::HasSlot() noexcept try {
  Slot();
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

}  // namespace engine::detail
