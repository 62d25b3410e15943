// How an engine is made, and its counters.
#include "core/core.h"

#include <algorithm>

#include "core/wait_log.h"

namespace engine::detail {

EngineCore::EngineCore(EngineOptions options)
    : options_(std::move(options)),
      ops_(BlockKind::kOps, options_.max_pending),
      vars_(BlockKind::kVars, size_t{1} << 16),
      completions_(BlockKind::kCompletions, size_t{1} << 10),
      devices_(MakeDevices(*this, options_)) {
  SetPolicy({options_.policy, options_.policy_options});
  EnlistForFork();
  try {
    pools_.Start();
  } catch (...) {
    DelistForFork();
    throw;
  }
}

// A closed engine gets no threads: it needs none, and would not join them.
void EngineCore::StartLostThreads() {
  if (!threads_lost_.exchange(false, std::memory_order_acq_rel) || closed()) return;
  try {
    pools_.StartLost();
  } catch (...) {
    threads_lost_.store(true, std::memory_order_release);
    t_engine_id = 0;  // the next call tries again
    throw;
  }
}

ThreadSlot& EngineCore::FindSlot() { return slots_.Mine(); }

EngineCore::~EngineCore() {
  // Nobody has stopped its trace, for which the waits of the whole process are noted.
  if (tracing()) WaitLog::End(Clock::time_point::max());
  DelistForFork();
}

Var EngineCore::AdoptVar(VarCore* counted) { return Var(counted); }

void EngineCore::SetPolicy(const PolicyChoice& choice) {
  const PolicyStamp stamp = StampOf(choice);
  // relaxed: a push that overlaps may get either policy.
  policy_.store(stamp, std::memory_order_relaxed);
}

EngineStats EngineCore::stats() {
  EngineStats out;
  uint64_t merged = 0;
  slots_.ForEach([&](const ThreadSlot& s) {
    out.completed += s.completed[0].Read() + s.completed[1].Read();
    out.skipped += s.skipped.Read();
    out.inlined += s.inlined.Read();
    merged += s.merged.Read();  // a merged op was inlined, too
    out.stolen += s.stolen.Read();
    out.backpressure_waits += s.backpressure_waits.Read();
  });
  out.inlined += merged;
  // An op for a device counts as merged when it is issued, and as completed when it has retired: so for a while more
  // ops may be merged than completed.
  out.dispatches = out.completed - std::min(out.completed, merged);
  slots_.ForEach([&](const ThreadSlot& s) { out.pushed += s.pushed[0].Read() + s.pushed[1].Read(); });
  pools_.ForEach([&](class Pool& p) {
    out.wakeups += p.wakeups();
    for (const auto& w : p.workers()) out.sleeps += w->sleeps.Read();
  });
  out.spare_threads = threads_.spare();
  for (const Arena* arena : {&ops_, &vars_, &completions_}) {
    out.slab_bytes += arena->slab_bytes();
    out.slab_allocations += arena->slab_allocations();
  }
  out.unseen_errors = errors_.unseen();
  return out;
}

}  // namespace engine::detail
