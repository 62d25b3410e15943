#include "pool.h"

#include <pthread.h>

#include <algorithm>
#include <string>

namespace engine {
namespace detail {
namespace {

thread_local StagePool* current = nullptr;

struct Registry {
  struct Entry {
    StagePoolOptions options;
    std::shared_ptr<StagePool> pool;
    uint32_t generation;
  };
  Mutex mu;
  std::vector<Entry> pools GUARDED_BY(mu);
  // relaxed: changes only while a fork's child has one thread.
  std::atomic<uint32_t> generation{0};
};

// The lock is taken over a fork, so that the child finds the list complete.
void BeforeFork();
void AfterForkInParent();
void AfterForkInChild();

Registry& AllPools() {
  static auto* registry = [] {
    pthread_atfork(&BeforeFork, &AfterForkInParent, &AfterForkInChild);
    return new Registry;  // never destroyed, because threads may outlive main
  }();
  return *registry;
}
// Made when the library is loaded, because a fork while it is being made would leave it locked in the child.
[[maybe_unused]] const Registry& g_pools_made_early = AllPools();

void BeforeFork() NO_THREAD_SAFETY_ANALYSIS { AllPools().mu.Lock(); }
void AfterForkInParent() NO_THREAD_SAFETY_ANALYSIS { AllPools().mu.Unlock(); }
void AfterForkInChild() NO_THREAD_SAFETY_ANALYSIS {
  AllPools().generation.fetch_add(1, std::memory_order_relaxed);
  AllPools().mu.Unlock();
}

}  // namespace

StagePool* StagePool::Current() { return current; }

bool StagePool::Enter(bool wait, const std::function<bool()>& give_up) {
  MutexLock lock(mu_);
  while (taken_ >= options_.inter_op_threads_num) {
    if (give_up() || !wait) return false;
    ++waiting_;
    changed_.Wait(mu_);
    --waiting_;
  }
  if (give_up()) {
    if (waiting_ > 0) changed_.NotifyOne();  // the wake that came to us was meant for another thread
    return false;
  }
  ++taken_;
  current = this;
  return true;
}

void StagePool::Leave() {
  MutexLock lock(mu_);
  --taken_;
  current = nullptr;
  if (waiting_ > 0) changed_.NotifyOne();
}

void StagePool::Nudge() {
  MutexLock lock(mu_);
  if (waiting_ > 0) changed_.NotifyAll();
}

void StagePool::ParallelFor(size_t n, size_t grain, const std::function<void(size_t, size_t)>& body) {
  if (UseTbb()) {
    intra_op_.For(n, grain, body);
  } else if (n > 0) {
    body(0, n);
  }
}

uint32_t ForkGeneration() { return AllPools().generation.load(std::memory_order_relaxed); }

std::shared_ptr<StagePool> FindStagePool(engine::StagePool handle) {
  Registry& registry = AllPools();
  MutexLock lock(registry.mu);
  auto& entry = registry.pools[static_cast<size_t>(handle.number())];
  const uint32_t generation = registry.generation.load(std::memory_order_relaxed);
  if (entry.generation != generation) {
    new std::shared_ptr<StagePool>(
        std::move(entry.pool));  // never destroyed: a thread that is gone may have taken its lock
    entry.pool = std::make_shared<StagePool>(entry.options);
    entry.generation = generation;
  }
  return entry.pool;
}

}  // namespace detail

StagePool StagePool::Number(int number) {
  auto& registry = detail::AllPools();
  detail::MutexLock lock(registry.mu);
  const auto count = static_cast<int>(registry.pools.size());
  if (number >= 0 && number < count) return StagePool(number);
  std::string text = "stage_subgraph_thread_pool_id is " + std::to_string(number) + "; ";
  if (count == 0) throw UsageError(text + "no stage pool has been made yet");
  text += "the stage pools are";
  for (int i = 0; i < count; ++i)
    text += (i ? ", " : " ") + std::to_string(i) + " ('" + registry.pools[static_cast<size_t>(i)].options.global_name +
            "')";
  throw UsageError(text);
}

StagePool MakeStagePool(StagePoolOptions options) {
  const std::string label = "stage pool '" + options.global_name + "': ";
  if (options.global_name.empty()) throw UsageError("stage pool: global_name is empty; a name is expected");
  const auto check = [&](const char* field, int value) {
    if (value < 1) throw UsageError(label + field + " is " + std::to_string(value) + "; at least 1 is expected");
  };
  check("inter_op_threads_num", options.inter_op_threads_num);
  check("intra_op_threads_num", options.intra_op_threads_num);
  auto& registry = detail::AllPools();
  detail::MutexLock lock(registry.mu);
  for (size_t i = 0; i < registry.pools.size(); ++i) {
    if (registry.pools[i].options.global_name == options.global_name) {
      throw UsageError(label + "the name is taken by stage pool " + std::to_string(i));
    }
  }
  registry.pools.push_back(
      {options, std::make_shared<detail::StagePool>(options), registry.generation.load(std::memory_order_relaxed)});
  return StagePool(static_cast<int>(registry.pools.size()) - 1);
}

std::vector<StagePoolOptions> StagePools() {
  auto& registry = detail::AllPools();
  detail::MutexLock lock(registry.mu);
  std::vector<StagePoolOptions> all;
  for (const auto& entry : registry.pools) all.push_back(entry.options);
  return all;
}

void StageParallelFor(size_t n, size_t grain, const std::function<void(size_t, size_t)>& body) {
  if (detail::StagePool* pool = detail::StagePool::Current()) {
    pool->ParallelFor(n, grain, body);
  } else {
    for (size_t begin = 0, step = std::max<size_t>(1, grain); begin < n; begin += step) {
      body(begin, std::min(n, begin + step));
    }
  }
}

}  // namespace engine
