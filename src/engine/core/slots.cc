#include "core/slots.h"

#include "base/per_thread.h"
#include "core/core.h"

namespace engine::detail {

thread_local constinit uint64_t t_engine_id = 0;
thread_local constinit ThreadSlot* t_slot = nullptr;

namespace {

uint64_t NewId() {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);  // relaxed: only uniqueness counts
}

// The slot of this thread in one engine. t_slot caches the slot that was used last.
struct SlotEntry {
  uint64_t id;
  ThreadSlot* slot;
  std::shared_ptr<Liveness> engine;
  uint32_t forks = Forks();
  // Of the process that this one was forked from: no engine knows the slot any more, and the lock may be taken for ever.
  bool inherited() const { return forks != Forks(); }
};

// On an engine's own thread: the slot of the role that it plays. Not in the table, so that it needs no memory, and
// because the thread must not give it back when it ends.
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
      if (e.inherited()) continue;
      MutexLock lock(e.engine->mu);
      if (e.engine->slots) e.engine->slots->Return(e.slot);
    }
  }
};

void UseNow(uint64_t id, ThreadSlot* slot) {
  t_engine_id = id;
  t_slot = slot;
}

void EnterInTable(SlotEntry entry) {
  std::vector<SlotEntry>& entries = PerThread<SlotTable>::Get().entries;
  std::erase_if(entries, [&](SlotEntry& e) {
    if (e.id == entry.id || e.inherited()) return true;
    MutexLock lock(e.engine->mu);
    return e.engine->slots == nullptr;  // the engine is gone
  });
  entries.push_back(std::move(entry));
  UseNow(entries.back().id, entries.back().slot);
}

}  // namespace

Slots::Slots(EngineCore& core, Arena& ops, Arena& vars, Arena& completions)
    : id_(NewId()),
      core_(core),
      ops_(ops),
      vars_(vars),
      completions_(completions),
      spare_(Take()),
      liveness_(std::make_shared<Liveness>()) {
  MutexLock lock(liveness_->mu);
  liveness_->slots = this;
}

Slots::~Slots() {
  MutexLock lock(liveness_->mu);
  liveness_->slots = nullptr;
}

ThreadSlot& Slots::Find() {
  const uint64_t mine = id();
  if (t_role.id == mine) {
    UseNow(mine, t_role.slot);
    return *t_slot;
  }
  const std::vector<SlotEntry>& entries = PerThread<SlotTable>::Get().entries;
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const SlotEntry& e) { return e.id == mine; });
  if (found != entries.end()) {
    UseNow(mine, found->slot);
  } else {
    ThreadSlot* const slot = Take();
    try {
      EnterInTable({mine, slot, liveness_});
    } catch (...) {
      Return(slot);
      throw;
    }
  }
  core_.StartLostThreads();
  return *t_slot;
}

ThreadSlot* Slots::Take() {
  MutexLock lock(mu_);
  for (auto& s : slots_) {
    if (s->taken || s->worker) continue;
    s->taken = true;
    return s.get();
  }
  slots_.push_back(std::make_unique<ThreadSlot>(&core_, ops_, vars_, completions_));
  slots_.back()->taken = true;
  return slots_.back().get();
}

void Slots::Return(ThreadSlot* slot) {
  slot->cache.Flush();
  slot->var_cache.Flush();
  slot->completion_cache.Flush();
  MutexLock lock(mu_);
  slot->taken = false;
}

ThreadSlot* Slots::FindOrNull() noexcept try {
  return &Find();
} catch (...) {  // no memory, or, in a fork's child, no threads
  return nullptr;
}

void Slots::Remember(ThreadSlot* slot) noexcept {
  t_role = {id(), slot};
  UseNow(t_role.id, slot);
}

void Slots::Forget(uint64_t id) {
  t_engine_id = 0;
  if (t_role.id == id) t_role = {};
  if (SlotTable* table = PerThread<SlotTable>::Made())
    std::erase_if(table->entries, [&](const SlotEntry& e) { return e.id == id; });
}

bool Slots::Drained(uint8_t parity) {
  MutexLock lock(mu_);
  uint64_t completed = 0, pushed = 0;
  for (const auto& s : slots_) completed += s->completed[parity].Read();
  for (const auto& s : slots_) pushed += s->pushed[parity].Read();
  return completed == pushed;  // if equal, all had ended when `completed` was summed
}

uint64_t Slots::Pending() {
  MutexLock lock(mu_);
  uint64_t done = 0, pushed = 0;
  for (const auto& s : slots_) done += s->completed[0].Read() + s->completed[1].Read();
  for (const auto& s : slots_) pushed += s->pushed[0].Read() + s->pushed[1].Read();
  return pushed - done;
}

uint64_t Slots::Completed() {
  uint64_t done = 0;
  ForEach([&](const ThreadSlot& s) { done += s.completed[0].Read() + s.completed[1].Read(); });
  return done;
}

bool Slots::PushInProgress() {
  bool found = false;
  ForEach([&](const ThreadSlot& s) { found |= s.pushing.load(std::memory_order_acquire) != 0; });
  return found;
}

Slots::Runs Slots::OwnRuns() {
  Runs all;
  ForEach([&](const ThreadSlot& s) {
    const uint64_t runs = s.own_runs.Read();
    all.count += runs;
    all.under_way |= runs % 2 != 0;
  });
  return all;
}

void Slots::AfterForkInChild() { Renew(*this, core_, ops_, vars_, completions_); }

// Without the analysis of locks, because the lock is taken as long as the EndSlot lives. Until then the spare slot
// counts as this thread's.
EndSlot::EndSlot(Slots& slots) noexcept NO_THREAD_SAFETY_ANALYSIS : slots_(slots) {
  try {
    slot_ = &slots.Mine();
  } catch (...) {
    slots.spare_mu_.Lock();
    spare_ = true;
    slot_ = slots.spare_;
    UseNow(slots.id(), slot_);
  }
}

EndSlot::~EndSlot() NO_THREAD_SAFETY_ANALYSIS {
  if (!spare_) return;
  t_engine_id = 0;
  slots_.spare_mu_.Unlock();
}

}  // namespace engine::detail
