// Threads: slots of callers, workers' roles and who plays them, stand-ins, stop and start.
#include "engine_thread.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>

namespace engine::detail {

thread_local constinit uint64_t t_engine_id = 0;
thread_local constinit ThreadSlot* t_slot = nullptr;

namespace {

// What this thread has in each engine. The current one is cached for the push path.
struct SlotEntry {
  uint64_t id;
  ThreadSlot* slot;
  std::shared_ptr<Liveness> engine;  // null: a role's slot, not this thread's to return
};

struct SlotTable {
  std::vector<SlotEntry> entries;
  ~SlotTable() {
    for (SlotEntry& e : entries) {
      if (!e.engine) continue;
      MutexLock lock(e.engine->mu);
      if (e.engine->core) e.engine->core->ReturnSlot(e.slot);
    }
  }
};

thread_local SlotTable t_table;
thread_local constinit void* t_thread = nullptr;  // EngineThread of the engine that runs this thread

void Remember(SlotEntry entry) {
  t_engine_id = entry.id;
  t_slot = entry.slot;
  std::erase_if(t_table.entries, [&](SlotEntry& e) {
    if (e.id == entry.id) return true;
    if (!e.engine) return false;
    MutexLock lock(e.engine->mu);
    return e.engine->core == nullptr;  // an engine that has gone
  });
  t_table.entries.push_back(std::move(entry));
}

void SetThreadUp(const PoolOptions& options, const std::string& name, int index) {
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
  if (options.cpus.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(options.cpus[static_cast<size_t>(index) % options.cpus.size()], &set);
  pthread_setaffinity_np(pthread_self(), sizeof(set), &set);  // a refused affinity costs speed, never a result
}

}  // namespace

ThreadSlot& EngineCore::FindSlot() {
  const uint64_t id = id_.load(std::memory_order_relaxed);
  bool found = false;
  for (SlotEntry& e : t_table.entries) {
    if (e.id != id) continue;
    t_engine_id = id;
    t_slot = e.slot;
    found = true;
    break;
  }
  if (!found) Remember({id, TakeSlot(), liveness_});
  if (threads_lost_.exchange(false, std::memory_order_acq_rel)) StartAllThreads();  // first use after a fork
  return *t_slot;
}

ThreadSlot* EngineCore::TakeSlot() {
  MutexLock lock(slots_mu_);
  for (auto& s : slots_) {
    if (s->taken || s->worker) continue;
    s->taken = true;
    return s.get();
  }
  slots_.push_back(std::make_unique<ThreadSlot>(this, ops_, vars_));
  slots_.back()->taken = true;
  return slots_.back().get();
}

void EngineCore::ReturnSlot(ThreadSlot* slot) {
  slot->cache.Flush();
  slot->var_cache.Flush();
  MutexLock lock(slots_mu_);
  slot->taken = false;
}

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
    worker->slot = TakeSlot();
    worker->slot->worker = worker.get();
    made->workers().push_back(std::move(worker));
  }
  roles_ += static_cast<size_t>(threads);
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
    devices_->Get(place.index);  // throws if there is none
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

void EngineCore::MakeLane(uint8_t index, PoolOptions options) {
  MutexLock lock(pools_mu_);
  if (HasPool(index)) return;
  class Pool* pool = MakePool(index, std::move(options), 1);
  if (stopped_) {
    pool->StopWorkers();
  } else {
    StartThreads(*pool);
  }
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
  threads_.push_back(std::make_unique<EngineThread>());
  threads_.back()->core = this;
  EngineThread* t = threads_.back().get();
  t->thread = std::thread([this, t] { ThreadMain(*t); });
  return t;
}

void EngineCore::StartThreads(class Pool& pool) {
  for (auto& worker : pool.workers()) {
    playing_.fetch_add(1, std::memory_order_relaxed);
    Command(*TakeIdleThread(false), EngineThread::kPlay, worker.get());
  }
}

void EngineCore::StartAllThreads() {
  ForEachPool([this](class Pool& p) { StartThreads(p); });
  if (options_.stall_timeout.count() > 0) watchdog_ = std::thread([this] { WatchdogMain(); });
}

void EngineCore::Command(EngineThread& thread, uint32_t command, Worker* role) {
  thread.role = role;
  thread.command.store(command, std::memory_order_release);  // release: the role. Partner: the acquire in ThreadMain
  FutexWake(thread.command, 1);
}

void EngineCore::ThreadMain(EngineThread& thread) {
  t_thread = &thread;
  for (;;) {
    uint32_t command;
    while ((command = thread.command.load(std::memory_order_acquire)) == EngineThread::kIdle)
      FutexWait(thread.command, EngineThread::kIdle);
    if (command == EngineThread::kExit) break;
    bool role_is_back = false;
    if (command == EngineThread::kPlay) {
      role_is_back = PlayRole(thread, *thread.role);
    } else {
      Park(thread.drive_until, kNever, true);
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
  for (const auto& [options, index] : thread.hooks) options->on_end(index);
}

// True when the pool stopped and the role is back; false when a stand-in has it.
bool EngineCore::PlayRole(EngineThread& thread, Worker& worker) {
  const uint64_t id = id_.load(std::memory_order_relaxed);
  class Pool& pool = *worker.pool;
  const PoolOptions& options = pool.options();
  Remember({id, worker.slot, nullptr});
  t_role_lent = false;
  worker.ran_on = 0;
  SetThreadUp(options, options_.thread_name + "/" + worker.lane, worker.index);
  if (!thread.hooked_pools.test(pool.index())) {
    thread.hooked_pools.set(pool.index());
    if (options.on_end) thread.hooks.emplace_back(&options, worker.index);
    if (options.on_start) options.on_start(worker.index);
  }
  OpRecord* next = nullptr;
  bool fair = false;
  uint32_t taken = 0, measured = 0;
  Clock::time_point since{};
  const bool several = pool.workers().size() > 1;
  for (uint32_t run = 0;; ++run) {
    if (several && (measured == 0 || measured >= tuning::kMeasuredOps)) {
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
      if (merged && worker.run_lane) devices_->EndRun(*worker.run_lane);
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
    Protocol::PrefetchEnd(next);
    next = Execute(*worker.slot, next, &worker);
    if (t_role_lent) break;  // with the worker
    const uint32_t ran_on = std::exchange(worker.ran_on, 0);
    if (measured) measured += ran_on;
  }
  const bool lent = std::exchange(t_role_lent, false);
  if (lent) {
    ReturnSlot(&Slot());
  } else {
    TellDrain(worker, nullptr);
    worker.slot->cache.Flush();
  }
  ForgetSlot(id);
  return !lent;
}

void EngineCore::ForgetSlot(uint64_t id) {
  std::erase_if(t_table.entries, [&](const SlotEntry& e) { return e.id == id; });
  t_engine_id = 0;
}

EngineCore::EngineThread* EngineCore::LendRole() {
  for (const RunFrame* f = t_frame; f; f = f->outer)
    if (f->core == this && (f->op->extra.flags & kInChain)) LeaveChain(f->op);
  Worker* role = Slot().worker;
  bool drives = false;
  for (const RunFrame* f = t_frame; f; f = f->outer) drives |= f->core == this && f->op->extra.pool == kCallerPool;
  EngineThread* const driver = drives ? TakeIdleThread(true) : nullptr;
  if (driver) {
    driver->drive_until.store(WaitNode::kPending, std::memory_order_relaxed);
    Command(*driver, EngineThread::kDrive, nullptr);
  }
  if (!role) return driver;
  EngineThread* player = nullptr;
  try {
    player = TakeIdleThread(true);
  } catch (...) {
    EndDriving(driver);
    throw;
  }
  Remember({id_.load(std::memory_order_relaxed), TakeSlot(), nullptr});
  t_role_lent = true;
  Command(*player, EngineThread::kPlay, role);
  return driver;
}

void EngineCore::EndDriving(EngineThread* driver) {
  if (!driver) return;
  if (driver->drive_until.exchange(WaitNode::kDone, std::memory_order_acq_rel) == WaitNode::kParked)
    FutexWake(driver->drive_until, 1);
}

bool EngineCore::OnOwnThread() const {
  for (const RunFrame* f = t_frame; f; f = f->outer)
    if (f->core == this) return true;
  return t_thread && static_cast<EngineThread*>(t_thread)->core == this;
}

// --- stop and start

// Waits for the roles to come back, not for threads whose op waits for something that only Start will run.
void EngineCore::Stop() {
  if (OnOwnThread()) throw UsageError("Stop inside an op would wait for itself");
  {
    MutexLock lock(pools_mu_);
    if (stopped_) return;
    stopped_ = true;
    ForEachPool([](class Pool& p) { p.StopWorkers(); });
  }
  JoinRoles();
}

void EngineCore::JoinRoles() {
  for (uint32_t n; (n = playing_.load(std::memory_order_acquire)) != 0;) FutexWait(playing_, n);
  WakeRoom();
  JoinIdle();
}

void EngineCore::Start() {
  MutexLock lock(pools_mu_);
  if (!stopped_) return;
  stopped_ = false;
  ForEachPool([this](class Pool& p) {
    p.RestartWorkers();
    StartThreads(p);
  });
}

void EngineCore::JoinIdle() {
  std::vector<std::unique_ptr<EngineThread>> leaving;
  {
    MutexLock lock(threads_mu_);
    for (EngineThread* t : idle_) {
      const auto at = std::find_if(threads_.begin(), threads_.end(), [&](const auto& own) { return own.get() == t; });
      leaving.push_back(std::move(*at));
      threads_.erase(at);
    }
    idle_.clear();
  }
  for (auto& t : leaving) {
    Command(*t, EngineThread::kExit, nullptr);
    t->thread.join();
  }
}

}  // namespace engine::detail
