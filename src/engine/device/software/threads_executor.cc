// Executor of real threads: one a lane, asleep while it has nothing to do.
//
// Locks: ThreadLane::mu, one at a time.
#include <deque>
#include <thread>
#include <vector>

#include "base/make_thread.h"
#include "device/software/executor.h"

namespace engine::detail {
namespace {

struct ThreadLane : Lane {
  using Lane::Lane;
  Mutex mu;
  CondVar work;      // the lane's thread waits for commands
  CondVar progress;  // others wait for `completed`, and the lane's own thread for a hold
  std::deque<Command> queue GUARDED_BY(mu);
  bool asleep GUARDED_BY(mu) = false;
  int waiters GUARDED_BY(mu) = 0;
  std::thread thread;
};

class ThreadsExecutor final : public Executor {
 public:
  using Executor::Executor;
  ~ThreadsExecutor() override {
    // seq_cst is not needed: WakeAll takes every lane's lock after this, and sleepers look again under it.
    stop_.store(true, std::memory_order_release);
    WakeAll();
    for (size_t i = 0; ThreadLane* lane = At(i); ++i) lane->thread.join();
  }

  Lane* AddLane(uint32_t id) override {
    MutexLock lock(lanes_mu_);
    lanes_.push_back(std::make_unique<ThreadLane>(id));
    ThreadLane* lane = lanes_.back().get();
    try {
      lane->thread = MakeThread("a thread for a stream of a software device", [this, lane] { Run(*lane); });
    } catch (...) {       // whoever joins them all must not find this one
      lanes_.pop_back();  // mutant: stream_without_a_thread
      throw;
    }
    return lane;
  }

  void Push(Lane* to, Command command) override {
    auto& lane = static_cast<ThreadLane&>(*to);
    MutexLock lock(lane.mu);
    lane.queue.push_back(std::move(command));
    if (lane.asleep) lane.work.NotifyAll();
  }

  void Advance(Nanoseconds) override {}
  void Block(const Marker& until) override { BlockOrStop(until); }

  void Release(Hold& hold) override {
    auto& lane = static_cast<ThreadLane&>(*hold.lane);
    MutexLock lock(lane.mu);
    hold.released = true;
    lane.progress.NotifyAll();
  }

  void RunUntilIdle() override {
    for (bool idle = false; !idle && !lost();) {  // again, because a lane may have been filled behind our back
      idle = true;
      for (size_t i = 0; ThreadLane* lane = At(i); ++i) {
        MutexLock lock(lane->mu);
        ++lane->waiters;
        while (!(lane->asleep && lane->queue.empty()) && !lost()) {
          idle = false;
          lane->progress.Wait(lane->mu);
        }
        --lane->waiters;
      }
    }
  }

  Nanoseconds Now() const override { return std::chrono::duration_cast<Nanoseconds>(Clock::now() - start_); }

 private:
  // Null behind the last one. A lane stays, so that all may be visited without the lock, and without memory for a copy.
  ThreadLane* At(size_t i) {
    MutexLock lock(lanes_mu_);
    return i < lanes_.size() ? lanes_[i].get() : nullptr;
  }

  void WakeAll() override {
    for (size_t i = 0; ThreadLane* lane = At(i); ++i) {
      MutexLock lock(lane->mu);
      lane->work.NotifyAll();
      lane->progress.NotifyAll();
    }
  }

  // acquire: pairs with the release in the destructor; lost() has its own.
  bool Over() const noexcept { return stop_.load(std::memory_order_acquire) || lost(); }

  void BlockOrStop(const Marker& until) {
    if (Reached(until)) return;
    auto& lane = static_cast<ThreadLane&>(*until.lane);
    MutexLock lock(lane.mu);
    ++lane.waiters;
    while (!lane.Reached(until.sequence) && !Over()) lane.progress.Wait(lane.mu);
    --lane.waiters;
  }

  void Run(ThreadLane& lane) {
    std::deque<Command> batch;
    for (;;) {
      {
        MutexLock lock(lane.mu);
        while (lane.queue.empty()) {
          if (stop_.load(std::memory_order_acquire)) return;
          lane.asleep = true;
          if (lane.waiters > 0) lane.progress.NotifyAll();  // RunUntilIdle
          lane.work.Wait(lane.mu);
          lane.asleep = false;
        }
        batch.swap(lane.queue);
      }
      for (Command& command : batch) {
        if (!Over()) Execute(lane, command);
        command = {};  // what the closure holds goes before anybody hears that it ended
        MutexLock lock(lane.mu);
        // A lost device completes nothing: who asks is told of the loss.
        if (!Over())
          lane.completed.store(lane.completed.load(std::memory_order_relaxed) + 1, std::memory_order_release);
        if (lane.waiters > 0) lane.progress.NotifyAll();
      }
      batch.clear();
    }
  }

  void Execute(ThreadLane& lane, Command& command) {
    BlockOrStop(command.wait);
    const Nanoseconds start = observer_ && command.work ? Now() : Nanoseconds{0};
    if (command.hold) {
      MutexLock lock(lane.mu);
      while (!command.hold->released && !Over()) lane.progress.Wait(lane.mu);
    }
    if (Over()) return;
    if (command.reached_at) *command.reached_at = Now();
    if (!command.work) return;
    DeviceStatus failure;
    if (!RunBody(*command.work, &failure)) return Lose(std::move(failure));
    if (observer_ && command.observed) observer_->OnRan(lane.id, *command.work, start, Now());
  }

  const Clock::time_point start_ = Clock::now();
  std::atomic<bool> stop_{false};
  Mutex lanes_mu_;
  std::vector<std::unique_ptr<ThreadLane>> lanes_ GUARDED_BY(lanes_mu_);
};

}  // namespace

std::unique_ptr<Executor> MakeThreadsExecutor(std::shared_ptr<DeviceObserver> observer) {
  return std::make_unique<ThreadsExecutor>(std::move(observer));
}

}  // namespace engine::detail
