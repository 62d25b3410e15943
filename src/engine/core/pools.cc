#include "core/pools.h"

#include "core/core.h"

namespace engine::detail {

Pools::Pools(EngineCore& core, bool stopped)
    : stopped_(stopped),
      default_pool_(core.options().workers == 0 ? kCallerPool : kDefaultPool),
      end_of_named_(kFirstNamedPool),
      core_(core) {
  const EngineOptions& options = core.options();
  MutexLock lock(mu_);
  const auto make = [&](uint8_t index, PoolOptions pool) REQUIRES(mu_) {
    core.threads().AddRoles(static_cast<size_t>(pool.threads));
    Make(index, std::move(pool), options.intra_op_threads);
  };
  make(kDefaultPool, {.name = "cpu",
                      .threads = options.workers,
                      .cpus = options.cpus,
                      .on_start = options.on_start,
                      .on_end = options.on_end});
  make(kCallerPool, {.name = "caller", .threads = 0});
  for (const PoolOptions& named : options.pools) make(end_of_named_++, named);
}

Pool* Pools::Make(uint8_t index, PoolOptions options, int intra_op) {
  const int threads = options.threads;
  const std::string name = options.name;
  auto made = std::make_unique<class Pool>(core_, index, std::move(options), intra_op, core_.options().spin);
  for (int i = 0; i < threads; ++i) {
    auto worker = std::make_unique<Worker>();
    worker->pool = made.get();
    worker->index = i;
    worker->name = Name::Intern(name + "/" + std::to_string(i));
    worker->slot = core_.slots().Take();
    worker->slot->worker = worker.get();
    made->workers().push_back(std::move(worker));
  }
  class Pool* pool = made.get();
  made_.push_back(std::move(made));
  at_[index].store(pool, std::memory_order_release);  // release: publishes the pool. Partner: the acquire in at()
  return pool;
}

// The index of the pool of any placement but the default. Makes the pools of I/O, copies, devices and channels on first
// use.
uint8_t Pools::PlacedIndex(const Placement& place) {
  switch (place.kind) {
    case Placement::Kind::kDefault: break;
    case Placement::Kind::kPool:
      if (place.index < kFirstNamedPool || place.index >= end_of_named_)
        throw UsageError("a placement names pool " + std::to_string(place.index) +
                         ", which this engine does not have; Engine::Pool gives the placement of a pool by its name");
      return static_cast<uint8_t>(place.index);
    case Placement::Kind::kIo:
      if (!Has(kIoPool)) MakePool(kIoPool, {.name = "io", .threads = core_.options().io_threads});
      return kIoPool;
    case Placement::Kind::kCommunicator:
      if (!core_.devices().HasChannel(place.index))
        throw UsageError("a placement on communicator " + std::to_string(place.index) +
                         ", which this engine does not have; Communicator::place() gives the placement of one");
      return MakeDevicePool(static_cast<uint8_t>(kFirstChannelPool + place.index), "comm", place.index);
    case Placement::Kind::kCopyIn:
    case Placement::Kind::kCopyOut:
    case Placement::Kind::kGpu: break;
    default:
      throw UsageError("a placement of kind " + std::to_string(static_cast<int>(place.kind)) + "; the last kind is " +
                       std::to_string(static_cast<int>(Placement::Kind::kCommunicator)));
  }
  if (place.index >= kMaxDevices)
    throw UsageError("a placement on device " + std::to_string(place.index) + "; the most is " +
                     std::to_string(kMaxDevices - 1));
  const bool compute = place.kind == Placement::Kind::kGpu;
  const bool in = place.kind == Placement::Kind::kCopyIn;
  if (compute && place.lane != Placement::kAnyLane && place.lane >= kMaxLanes)
    throw UsageError("lane " + std::to_string(place.lane) + " of device " + std::to_string(place.index) +
                     "; the most is " + std::to_string(kMaxLanes - 1));
  const auto index =
      static_cast<uint8_t>(compute ? kFirstDevicePool + place.index : kFirstCopyPool + 2 * place.index + (in ? 0 : 1));
  const char* const name = compute ? "gpu" : in ? "copy_in" : "copy_out";
  if (Has(index)) return index;
  if (compute || core_.devices().Has(place.index)) {
    core_.devices().Make(place.index);
    return MakeDevicePool(index, name, place.index);
  }
  MakePool(index, {.name = name + std::to_string(place.index)});
  return index;
}

uint8_t Pools::MakeDevicePool(uint8_t index, const char* name, uint16_t number) {
  if (Has(index)) return index;
  // relaxed, both: whoever finds the pool is behind the release store in Make.
  core_.NoteDevices();
  on_device_.fetch_or(uint64_t{1} << (index - kFirstChannelPool), std::memory_order_relaxed);
  MakePool(index, {.name = name + std::to_string(number)});
  return index;
}

void Pools::MakePool(uint8_t index, PoolOptions options) {
  try {
    MutexLock lock(mu_);
    TryMakePool(index, std::move(options));
  } catch (...) {
    core_.threads().JoinIdle();  // without the lock: these threads may call on_end, which may push
    throw;
  }
}

// Takes the threads before it makes the pool: a pool without threads would take ops and never run them.
void Pools::TryMakePool(uint8_t index, PoolOptions options) {
  if (Has(index)) return;
  const auto roles = static_cast<size_t>(options.threads);
  Threads& all = core_.threads();
  std::vector<EngineThread*> threads;
  class Pool* pool = nullptr;
  all.AddRoles(roles);
  try {
    if (!stopped()) threads = all.Take(roles);
    pool = Make(index, std::move(options), 1);
  } catch (...) {
    all.DropRoles(roles);
    all.PutBack(threads);
    throw;
  }
  if (stopped()) return pool->StopWorkers();
  for (size_t i = 0; i < threads.size(); ++i) all.Play(*threads[i], *pool->workers()[i]);
}

Placement Pools::Named(std::string_view name) const {
  std::string known;
  for (uint8_t i = kFirstNamedPool; i < end_of_named_; ++i) {
    const class Pool* pool = at_[i].load(std::memory_order_acquire);
    if (pool->options().name == name) return {Placement::Kind::kPool, i};
    known += (known.empty() ? "'" : ", '") + pool->options().name + "'";
  }
  throw UsageError("no pool named '" + std::string(name) + "'; this engine has " +
                   (known.empty() ? "none besides the default and the I/O pool" : known));
}

// Takes all threads before the first worker begins, so that after a failure no worker has begun and no hook has run.
void Pools::StartRoles() {
  std::vector<Worker*> roles;
  ForEach([&](class Pool& p) {
    for (auto& worker : p.workers())
      if (!worker->played) roles.push_back(worker.get());
  });
  Threads& all = core_.threads();
  const std::vector<EngineThread*> threads = all.Take(roles.size());
  try {
    core_.watchdog().Start();
  } catch (...) {
    all.PutBack(threads);
    throw;
  }
  stopped_.store(false, std::memory_order_relaxed);  // before workers begin: their hooks may push
  ForEach([](class Pool& p) { p.RestartWorkers(); });
  for (size_t i = 0; i < roles.size(); ++i) all.Play(*threads[i], *roles[i]);
}

void Pools::Start() { StartIf(true); }
void Pools::StartLost() { StartIf(false); }

void Pools::StartIf(bool stopped_now) {
  try {
    MutexLock lock(mu_);
    if (stopped() == stopped_now) StartRoles();
  } catch (...) {
    core_.threads().JoinIdle();  // without the lock, as in MakePool
    throw;
  }
}

bool Pools::Stop() {
  MutexLock lock(mu_);
  if (stopped()) return false;
  stopped_.store(true, std::memory_order_relaxed);
  ForEach([](class Pool& p) { p.StopWorkers(); });
  return true;
}

}  // namespace engine::detail
