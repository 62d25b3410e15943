// Making an engine, and its counters.
#include "core/core.h"

#include <algorithm>

#include "core/engine_thread.h"

namespace engine::detail {

EngineCore::EngineCore(EngineOptions options)
    : options_(std::move(options)),
      ops_(BlockKind::kOps, options_.max_pending),
      vars_(BlockKind::kVars, size_t{1} << 16),
      completions_(BlockKind::kCompletions, size_t{1} << 10),
      devices_(MakeDevices(*this, options_)) {
  MakePools();
  SetPolicy({options_.policy, options_.policy_options});
  EnlistForFork();
  try {
    MutexLock lock(pools_mu_);
    StartPools();
  } catch (...) {
    DelistForFork();
    throw;
  }
}

void EngineCore::MakePools() {
  MutexLock lock(pools_mu_);
  roles_ = static_cast<size_t>(options_.workers);
  for (const PoolOptions& named : options_.pools) roles_ += static_cast<size_t>(named.threads);
  for (auto& p : pools_) p.store(nullptr, std::memory_order_relaxed);
  MakePool(kDefaultPool,
           {.name = "cpu",
            .threads = options_.workers,
            .cpus = options_.cpus,
            .on_start = options_.on_start,
            .on_end = options_.on_end},
           options_.intra_op_threads);
  MakePool(kCallerPool, {.name = "caller", .threads = 0}, options_.intra_op_threads);
  default_pool_.store(options_.workers == 0 ? kCallerPool : kDefaultPool, std::memory_order_relaxed);
  next_pool_ = kFirstNamedPool;
  for (const PoolOptions& named : options_.pools) MakePool(next_pool_++, named, options_.intra_op_threads);
}

ThreadSlot& EngineCore::FindSlot() { return slots_.Mine(); }

EngineCore::~EngineCore() { DelistForFork(); }

Var EngineCore::AdoptVar(VarCore* counted) { return Var(counted); }

void EngineCore::SetPolicy(const PolicyChoice& choice) {
  const PolicyStamp stamp = StampOf(choice);
  // relaxed: any push that overlaps may be stamped with either.
  policy_.store(stamp, std::memory_order_relaxed);
}

EngineStats EngineCore::stats() {
  EngineStats out;
  uint64_t merged = 0;
  slots_.ForEach([&](const ThreadSlot& s) {
    out.completed += s.completed[0].Read() + s.completed[1].Read();
    out.skipped += s.skipped.Read();
    out.inlined += s.inlined.Read();
    merged += s.merged.Read();  // each of them inlined
    out.stolen += s.stolen.Read();
    out.backpressure_waits += s.backpressure_waits.Read();
  });
  out.inlined += merged;
  // An op for a device is merged when it is issued, and completed when it has retired.
  out.dispatches = out.completed - std::min(out.completed, merged);
  slots_.ForEach([&](const ThreadSlot& s) { out.pushed += s.pushed[0].Read() + s.pushed[1].Read(); });
  ForEachPool([&](class Pool& p) {
    out.wakeups += p.wakeups();
    for (const auto& w : p.workers()) out.sleeps += w->sleeps.Read();
  });
  {
    MutexLock lock(threads_mu_);
    out.spare_threads = threads_.size() > roles_ ? threads_.size() - roles_ : 0;
  }
  for (const Arena* arena : {&ops_, &vars_, &completions_}) {
    out.slab_bytes += arena->slab_bytes();
    out.slab_allocations += arena->slab_allocations();
  }
  out.unseen_errors = errors_.unseen();
  return out;
}

}  // namespace engine::detail
