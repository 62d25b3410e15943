#include "core/threads.h"

#include <algorithm>

#include "base/fork.h"
#include "base/make_thread.h"
#include "core/core.h"
#include "core/hook_frame.h"

namespace engine::detail {

static thread_local constinit EngineThread* t_thread = nullptr;  // null: no engine has made this thread

EngineThread* Threads::TakeIdle(bool stand_in) {
  MutexLock lock(mu_);
  if (!idle_.empty()) {
    EngineThread* t = idle_.back();
    idle_.pop_back();
    return t;
  }
  if (stand_in && threads_.size() >= roles_ + static_cast<size_t>(core_.options().max_spare_threads))
    throw UsageError("too many ops wait inside their bodies: all " + std::to_string(core_.options().max_spare_threads) +
                     " stand-in threads are in use; raise the option max_spare_threads, or wait in fewer ops");
  idle_.reserve(threads_.size() + 1);  // so that a thread which becomes idle needs no memory
  threads_.push_back(std::make_unique<EngineThread>());
  EngineThread* t = threads_.back().get();
  t->core = &core_;
  try {
    t->thread = MakeThread(stand_in ? "a stand-in thread for an op that waits" : "a thread for a worker",
                           [this, t] { Main(*t); });
  } catch (...) {
    threads_.pop_back();  // otherwise JoinAll would wait for it
    throw;
  }
  return t;
}

std::vector<EngineThread*> Threads::Take(size_t n) {
  std::vector<EngineThread*> threads;
  threads.reserve(n);
  try {
    while (threads.size() < n) threads.push_back(TakeIdle(false));
  } catch (...) {
    PutBack(threads);
    throw;
  }
  return threads;
}

void Threads::PutBack(std::span<EngineThread* const> threads) {
  MutexLock lock(mu_);
  idle_.insert(idle_.end(), threads.begin(), threads.end());  // has room for all threads
}

void Threads::Play(EngineThread& thread, Worker& role) {
  role.played = true;
  playing_.fetch_add(1, std::memory_order_relaxed);
  PlayOn(thread, role);
}

void Threads::PlayOn(EngineThread& thread, Worker& role) { Command(thread, EngineThread::kPlay, &role); }

EngineThread* Threads::StartDriver() {
  EngineThread* const driver = TakeStandIn();
  driver->drive_until.store(WaitNode::kPending, std::memory_order_relaxed);
  Command(*driver, EngineThread::kDrive, nullptr);
  return driver;
}

void Threads::EndDriving(EngineThread* driver) { WaitNode::End(driver->drive_until); }

void Threads::Command(EngineThread& thread, uint32_t command, Worker* role) {
  thread.role = role;
  thread.command.store(command,
                       std::memory_order_release);  // release: publishes the role. Partner: the acquire in Main
  FutexWake(thread.command, 1);
}

void Threads::Main(EngineThread& thread) {
  t_thread = &thread;
  const uint32_t forks = Forks();
  for (;;) {
    uint32_t command;
    while ((command = thread.command.load(std::memory_order_acquire)) == EngineThread::kIdle)
      FutexWait(thread.command, EngineThread::kIdle);
    if (command == EngineThread::kExit) break;
    bool role_is_back = false;
    if (command == EngineThread::kPlay) {
      Worker& role = *thread.role;
      role_is_back = PlayRole(thread, role);
      // Pools::StartRoles reads `played` once no thread plays a role. The count-down of playing_ below orders that read
      // behind this store.
      if (role_is_back) role.played = false;
    } else {
      core_.Park(thread.drive_until, kNever, nullptr);
    }
    if (Forks() != forks)
      return;  // in the child, where a body that forked has returned: all that is below is the parent's
    thread.command.store(EngineThread::kIdle, std::memory_order_relaxed);
    MutexLock lock(mu_);
    idle_.push_back(&thread);
    idle_changed_.fetch_add(1, std::memory_order_release);  // partner: JoinAll
    FutexWake(idle_changed_, kEveryone);
    if (!role_is_back) continue;
    playing_.fetch_sub(1, std::memory_order_acq_rel);  // after the thread is listed as idle, so that JoinIdle finds it
    FutexWake(playing_, kEveryone);
  }
  for (uint8_t i = 0; i < kMaxPools; ++i)
    if (const int index = thread.hooked[i] - 1; index >= 0)
      if (const auto& on_end = core_.pool(i).options().on_end)
        RunHook(&core_, HookFrame::Kind::kWorker, "on_end", [&] { on_end(index); });
}

size_t Threads::spare() const {
  MutexLock lock(mu_);
  const size_t roles = roles_.load(std::memory_order_relaxed);
  return threads_.size() > roles ? threads_.size() - roles : 0;
}

bool Threads::OwnThis() const { return t_thread && t_thread->core == &core_; }

void Threads::AwaitRoles() {
  for (uint32_t n; (n = playing_.load(std::memory_order_acquire)) != 0;) FutexWait(playing_, n);
}

void Threads::JoinIdle() {
  for (;;) {
    std::unique_ptr<EngineThread> leaving;
    {
      MutexLock lock(mu_);
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

void Threads::JoinAll() {
  for (;;) {
    const uint32_t changed = idle_changed_.load(std::memory_order_acquire);
    AwaitRoles();
    JoinIdle();
    {
      MutexLock lock(mu_);
      if (threads_.empty()) return;
    }
    FutexWait(idle_changed_, changed);
  }
}

// In a fork's child. If this thread is the engine's, the fork was inside a body that it runs: when that body returns, the
// thread leaves the loop, because the queues there are the parent's, whose ops must not run twice.
void Threads::AfterForkInChild() {
  if (OwnThis()) {
    if (t_thread->role) t_thread->role->pool->LeaveInChild();
    t_role_lent = false;  // nobody else has it here; a new slot would bring threads, which the child may not need
    EndDriving(t_thread);
  }
  Renew(*this, core_);
}

void Threads::DetachAll() {
  MutexLock lock(mu_);
  for (auto& t : threads_)
    if (t->thread.joinable()) t->thread.detach();
}

}  // namespace engine::detail
