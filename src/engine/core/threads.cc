// Threads: pools and the threads of their workers, roles and who plays them, stand-ins.
#include "core/engine_thread.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cstdio>

#include "base/make_thread.h"
#include "core/hook_frame.h"

namespace engine::detail {

namespace {

thread_local constinit const EngineCore* t_thread_of = nullptr;  // the engine that runs this thread

void SetThreadUp(const PoolOptions& options, const std::string& prefix, const Worker& worker) {
  char name[16];  // as much as a thread's name may have
  std::snprintf(name, sizeof name, "%s/%s", prefix.c_str(), worker.lane.c_str());
  pthread_setname_np(pthread_self(), name);
  if (options.cpus.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(options.cpus[static_cast<size_t>(worker.index) % options.cpus.size()], &set);
  pthread_setaffinity_np(pthread_self(), sizeof(set), &set);  // a refused affinity costs speed, never a result
}

}  // namespace

// --- pools

Pool* EngineCore::MakePool(uint8_t index, PoolOptions options, int intra_op) {
  const int threads = options.threads;
  const std::string lane = options.name;
  auto made = std::make_unique<class Pool>(*this, index, std::move(options), intra_op, options_.spin);
  for (int i = 0; i < threads; ++i) {
    auto worker = std::make_unique<Worker>();
    worker->pool = made.get();
    worker->index = i;
    worker->lane = lane + "/" + std::to_string(i);
    worker->slot = slots_.Take();
    worker->slot->worker = worker.get();
    made->workers().push_back(std::move(worker));
  }
  class Pool* pool = made.get();
  pools_made_.push_back(std::move(made));
  pools_[index].store(pool, std::memory_order_release);  // release: the pool. Partner: the acquire in pool()
  return pool;
}

// Lazily made placements: the I/O pool, and what belongs to devices, told apart by kind and device.
uint8_t EngineCore::LanePoolIndex(const Placement& place) {
  switch (place.kind) {
    case Placement::Kind::kDefault: break;
    case Placement::Kind::kPool:
      if (place.index < kFirstNamedPool || place.index >= next_pool_)
        throw UsageError("a placement names pool " + std::to_string(place.index) + ", which this engine does not have");
      return static_cast<uint8_t>(place.index);
    case Placement::Kind::kIo:
      if (!HasPool(kIoPool)) MakeLane(kIoPool, {.name = "io", .threads = options_.io_threads});
      return kIoPool;
    case Placement::Kind::kCommunicator:
      if (!devices_->HasChannel(place.index))
        throw UsageError("a placement on communicator " + std::to_string(place.index) +
                         ", which this engine does not have");
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
  if (HasPool(index)) return index;
  if (compute || devices_->Has(place.index)) {
    devices_->Make(place.index);
    return MakeDevicePool(index, name, place.index);
  }
  MakeLane(index, {.name = name + std::to_string(place.index)});
  return index;
}

uint8_t EngineCore::MakeDevicePool(uint8_t index, const char* name, uint16_t number) {
  if (HasPool(index)) return index;
  // relaxed, both: whoever can name the pool is behind its release store in MakePool.
  has_devices_.store(true, std::memory_order_relaxed);
  device_pools_.fetch_or(uint64_t{1} << (index - kFirstChannelPool), std::memory_order_relaxed);
  MakeLane(index, {.name = name + std::to_string(number)});
  return index;
}

void EngineCore::PlaceOnDevice(OpRecord* op, const Placement& place) {
  if (place.kind == Placement::Kind::kCommunicator) {
    op->extra.device = static_cast<uint8_t>(devices_->ChannelDevice(place.index));
    op->extra.asked_lane = static_cast<uint8_t>(kFirstChannelLane + place.index);
    return;
  }
  op->extra.device = static_cast<uint8_t>(place.index);
  op->extra.asked_lane = place.kind == Placement::Kind::kCopyIn    ? kCopyInLane
                         : place.kind == Placement::Kind::kCopyOut ? kCopyOutLane
                                                                   : place.lane;
}

// Its threads first: a pool without them would take ops and never run them.
void EngineCore::MakeLane(uint8_t index, PoolOptions options) {
  MutexLock lock(pools_mu_);
  if (HasPool(index)) return;
  const auto roles = static_cast<size_t>(options.threads);
  std::vector<EngineThread*> threads;
  class Pool* pool = nullptr;
  roles_ += roles;
  try {
    if (!stopped_) threads = TakeThreads(roles);
    pool = MakePool(index, std::move(options), 1);
  } catch (...) {
    roles_ -= roles;
    PutBack(threads);
    throw;
  }
  if (stopped_) return pool->StopWorkers();
  for (size_t i = 0; i < threads.size(); ++i) Play(*threads[i], *pool->workers()[i]);
}

Placement EngineCore::NamedPool(std::string_view name) const {
  std::string known;
  for (uint8_t i = kFirstNamedPool; i < next_pool_; ++i) {
    const class Pool* pool = pools_[i].load(std::memory_order_acquire);
    if (pool->options().name == name) return {Placement::Kind::kPool, i};
    known += (known.empty() ? "'" : ", '") + pool->options().name + "'";
  }
  throw UsageError("no pool named '" + std::string(name) + "'; this engine has " +
                   (known.empty() ? "none besides the default and the I/O pool" : known));
}

// --- threads

EngineCore::EngineThread* EngineCore::TakeIdleThread(bool stand_in) {
  MutexLock lock(threads_mu_);
  if (!idle_.empty()) {
    EngineThread* t = idle_.back();
    idle_.pop_back();
    return t;
  }
  if (stand_in && threads_.size() >= roles_ + static_cast<size_t>(options_.max_spare_threads))
    throw UsageError("too many ops wait inside their bodies: all " + std::to_string(options_.max_spare_threads) +
                     " stand-in threads are in use (EngineOptions::max_spare_threads)");
  idle_.reserve(threads_.size() + 1);  // a thread that gets idle must not fail
  threads_.push_back(std::make_unique<EngineThread>());
  EngineThread* t = threads_.back().get();
  t->core = this;
  try {
    t->thread = MakeThread(stand_in ? "a stand-in thread for an op that waits" : "a thread for a worker",
                           [this, t] { ThreadMain(*t); });
  } catch (...) {
    threads_.pop_back();  // whoever joins them all must not wait for this one
    throw;
  }
  return t;
}

// So many, or none: then throws.
std::vector<EngineCore::EngineThread*> EngineCore::TakeThreads(size_t n) {
  std::vector<EngineThread*> threads;
  threads.reserve(n);
  try {
    while (threads.size() < n) threads.push_back(TakeIdleThread(false));
  } catch (...) {
    PutBack(threads);
    throw;
  }
  return threads;
}

void EngineCore::PutBack(const std::vector<EngineThread*>& threads) {
  {
    MutexLock lock(threads_mu_);
    idle_.insert(idle_.end(), threads.begin(), threads.end());
  }
  JoinIdle();
}

void EngineCore::Play(EngineThread& thread, Worker& role) {
  role.played = true;
  playing_.fetch_add(1, std::memory_order_relaxed);
  Command(thread, EngineThread::kPlay, &role);
}

// All threads first, so that on failure no worker has begun and no hook has run.
void EngineCore::StartPools() {
  std::vector<Worker*> roles;
  ForEachPool([&](class Pool& p) {
    for (auto& worker : p.workers())
      if (!worker->played) roles.push_back(worker.get());
  });
  const std::vector<EngineThread*> threads = TakeThreads(roles.size());
  try {
    watchdog_.Start();
  } catch (...) {
    PutBack(threads);
    throw;
  }
  ForEachPool([](class Pool& p) { p.RestartWorkers(); });
  for (size_t i = 0; i < roles.size(); ++i) Play(*threads[i], *roles[i]);
}

// In the child of a fork, on its first use. A closed engine needs no threads, and would not join them.
void EngineCore::StartLostThreads() {
  if (!threads_lost_.exchange(false, std::memory_order_acq_rel) || closed()) return;
  MutexLock lock(pools_mu_);
  if (stopped_) return;
  try {
    StartPools();
  } catch (...) {
    threads_lost_.store(true, std::memory_order_release);
    t_engine_id = 0;  // so that the next call comes here again
    throw;
  }
}

void EngineCore::Command(EngineThread& thread, uint32_t command, Worker* role) {
  thread.role = role;
  thread.command.store(command, std::memory_order_release);  // release: the role. Partner: the acquire in ThreadMain
  FutexWake(thread.command, 1);
}

void EngineCore::ThreadMain(EngineThread& thread) {
  t_thread_of = this;
  for (;;) {
    uint32_t command;
    while ((command = thread.command.load(std::memory_order_acquire)) == EngineThread::kIdle)
      FutexWait(thread.command, EngineThread::kIdle);
    if (command == EngineThread::kExit) break;
    bool role_is_back = false;
    if (command == EngineThread::kPlay) {
      Worker& role = *thread.role;
      role_is_back = PlayRole(thread, role);
      // Partner: StartPools, once nobody plays; the order of playing_ carries it.
      if (role_is_back) role.played = false;
    } else {
      Park(thread.drive_until, kNever, nullptr);
    }
    thread.command.store(EngineThread::kIdle, std::memory_order_relaxed);
    MutexLock lock(threads_mu_);
    idle_.push_back(&thread);
    idle_changed_.fetch_add(1, std::memory_order_release);  // partner: the wait for all threads in shutdown.cc
    FutexWake(idle_changed_, kEveryone);
    if (!role_is_back) continue;
    playing_.fetch_sub(1, std::memory_order_acq_rel);  // listed as idle by now, for whoever stops and joins
    FutexWake(playing_, kEveryone);
  }
  for (uint8_t i = 0; i < kMaxPools; ++i)
    if (const int index = thread.hooked[i] - 1; index >= 0 && pool(i).options().on_end)
      RunHook(this, HookFrame::Kind::kWorker, "on_end", [&] { pool(i).options().on_end(index); });
}

// True when the pool stopped and the role is back; false when a stand-in has it.
bool EngineCore::PlayRole(EngineThread& thread, Worker& worker) {
  const uint64_t id = slots_.id();
  class Pool& pool = *worker.pool;
  const PoolOptions& options = pool.options();
  slots_.Remember(worker.slot);
  t_role_lent = false;
  SetThreadUp(options, options_.thread_name, worker);
  if (!thread.hooked[pool.index()]) {
    thread.hooked[pool.index()] = worker.index + 1;
    if (options.on_start) RunHook(this, HookFrame::Kind::kWorker, "on_start", [&] { options.on_start(worker.index); });
  }
  OpRecord* next = nullptr;
  bool fair = false;
  uint32_t taken = 0, measured = 0;
  Clock::time_point since{};
  const bool several = pool.workers().size() > 1;
  for (uint32_t run = 0;; ++run) {
    if (several && (measured == 0 || measured >= tuning::kMeasuredOps)) {  // mechanism: tiny_regime
      const auto now = Clock::now();
      const auto searched = std::exchange(worker.searched, std::chrono::nanoseconds{0});
      if (measured && pool.NoteMean(worker, now - since - searched, measured)) {
        if (next) pool.Put(*worker.slot, std::exchange(next, nullptr));
        pool.Retire(worker);
      }
      since = measured ? Clock::now() : now;
      measured = 0;
    }
    ++measured;
    const bool merged = next && (next->extra.flags & kInChain) && next->extra.merged;
    // Let others have a turn.
    if (next && ((run >= tuning::kInlineRun && !merged) || worker.turn_over || pool.stopping())) {
      worker.turn_over = false;
      if (merged) devices_->LeaveRun(worker);
      pool.Put(*worker.slot, next);
      next = nullptr;
      fair = true;
    }
    if (!next) {
      run = 0;
      // An op that pushes its like would keep all others out for ever: what lies in its own queue comes first.
      fair |= ++taken % tuning::kInlineRun == 0;
      const uint64_t sleeps = worker.sleeps.Read();
      next = pool.Next(worker, fair);
      if (worker.sleeps.Read() != sleeps) measured = 0;  // the time asleep is nobody's op
      fair = false;
      if (!next) break;
    }
    Protocol::PrefetchEnd(next);  // mechanism: prefetch_end
    next = Execute(*worker.slot, next, &worker);
    if (t_role_lent) break;  // with the worker
  }
  const bool lent = std::exchange(t_role_lent, false);
  if (lent) {
    slots_.Return(&Slot());
  } else {
    TellDrain(worker, nullptr);
    worker.slot->cache.Flush();
  }
  Slots::Forget(id);
  return !lent;
}

EngineCore::EngineThread* EngineCore::LendRole() {
  RefuseWaitInHook();
  for (const RunFrame* f = t_frame; f; f = f->outer)
    if (f->core == this && (f->op->extra.flags & kInChain)) chains_.Leave(f->op);
  Worker* role = Slot().worker;
  bool drives = false, ours = false;
  for (const RunFrame* f = t_frame; f; f = f->outer) {
    ours |= f->core == this;
    drives |= f->core == this && f->op->extra.pool == kCallerPool;
  }
  drives |= !ours && caller_pool_.used();
  ThreadSlot* const own = role ? slots_.Take() : nullptr;
  EngineThread* driver = nullptr;
  EngineThread* player = nullptr;
  try {
    if (role) player = TakeIdleThread(true);
    if (drives) driver = StartDriver();
  } catch (...) {
    if (player) PutBack({player});
    if (own) slots_.Return(own);
    throw;
  }
  if (!role) return driver;
  slots_.Remember(own);
  t_role_lent = true;
  Command(*player, EngineThread::kPlay, role);
  return driver;
}

EngineCore::EngineThread* EngineCore::StartDriver() {
  EngineThread* const driver = TakeIdleThread(true);
  driver->drive_until.store(WaitNode::kPending, std::memory_order_relaxed);
  Command(*driver, EngineThread::kDrive, nullptr);
  return driver;
}

void EngineCore::EndDriving(EngineThread* driver) {
  if (!driver) return;
  if (driver->drive_until.exchange(WaitNode::kDone, std::memory_order_acq_rel) == WaitNode::kParked)
    FutexWake(driver->drive_until, 1);
}

void EngineCore::RefuseWaitInHook() const {
  if (HookFrame::Inside(this, HookFrame::Kind::kWorker))
    throw UsageError(
        "a wait in on_start or on_end may be for what the hook's own worker is to run; push there, and wait elsewhere");
}

bool EngineCore::OnOwnThread() const {
  for (const RunFrame* f = t_frame; f; f = f->outer)
    if (f->core == this) return true;
  return t_thread_of == this || HookFrame::Inside(this);
}

void EngineCore::JoinIdle() {
  for (;;) {
    std::unique_ptr<EngineThread> leaving;
    {
      MutexLock lock(threads_mu_);
      if (idle_.empty()) return;
      const EngineThread* const last = idle_.back();
      idle_.pop_back();
      const auto at = std::find_if(threads_.begin(), threads_.end(), [&](const auto& t) { return t.get() == last; });
      leaving = std::move(*at);
      threads_.erase(at);
    }
    Command(*leaving, EngineThread::kExit, nullptr);
    leaving->thread.join();
  }
}

}  // namespace engine::detail
