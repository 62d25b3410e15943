// Executor of a virtual clock: a discrete-event simulation that runs inside the host's calls.
//
// Each lane has at most one command in progress; those that will end by themselves lie in a heap by the time at which
// they do. A command's body runs at its end. Lanes whose head waits for a marker are parked at that marker's lane.
// One lock for everything. It is taken while bodies run, so at any time at most one host thread is "the device".
#include <algorithm>
#include <queue>
#include <random>
#include <vector>

#include "device/software/executor.h"

namespace engine::detail {
namespace {

struct VirtualLane : Lane {
  using Lane::Lane;
  struct Queued {
    Command command;
    Nanoseconds submitted;
  };
  std::deque<Queued> queue;
  enum class Head : uint8_t { kNone, kRuns, kParked, kHeld } head = Head::kNone;
  Nanoseconds free_at{0};  // when the command before the head ended, or what the head waited for
  Nanoseconds start{0};    // of the head
  struct Parked {
    VirtualLane* lane;
    uint64_t sequence;
  };
  std::vector<Parked> parked;  // lanes whose heads wait for this one
};

struct End {
  Nanoseconds at;
  uint64_t rank;  // among equal times: by chance if there is a seed, else first come, first served
  VirtualLane* lane;
  bool operator>(const End& other) const { return at != other.at ? at > other.at : rank > other.rank; }
};

class VirtualExecutor final : public Executor {
 public:
  VirtualExecutor(std::shared_ptr<DeviceObserver> observer, uint64_t seed)
      : Executor(std::move(observer)), by_chance_(seed != 0), chance_(seed) {}

  Lane* AddLane(uint32_t id) override {
    MutexLock lock(mu_);
    lanes_.push_back(std::make_unique<VirtualLane>(id));
    return lanes_.back().get();
  }

  void Push(Lane* to, Command command) override {
    auto& lane = static_cast<VirtualLane&>(*to);
    MutexLock lock(mu_);
    lane.queue.push_back({std::move(command), now_});
    if (lane.head == VirtualLane::Head::kNone) StartHead(lane);
    changed_.NotifyAll();
  }

  void Advance(Nanoseconds by) override {
    MutexLock lock(mu_);
    RunUntil(now_ + by);
    changed_.NotifyAll();  // also for Lose, which came without the lock
  }

  void Block(const Marker& until) override {
    MutexLock lock(mu_);
    while (!Reached(until) && !lost()) {
      if (!ends_.empty()) {
        RunUntil(ends_.top().at);
      } else {
        changed_.Wait(mu_);  // another host thread has to release something
      }
    }
  }

  void Release(Hold& hold) override {
    MutexLock lock(mu_);
    hold.released = true;
    auto& lane = static_cast<VirtualLane&>(*hold.lane);
    if (lane.head == VirtualLane::Head::kHeld && lane.queue.front().command.hold.get() == &hold) {
      lane.free_at = now_;
      Schedule(lane);
    }
    changed_.NotifyAll();
  }

  void RunUntilIdle() override {
    MutexLock lock(mu_);
    while (!ends_.empty() && !lost()) RunUntil(ends_.top().at);
  }

  Nanoseconds Now() const override {
    MutexLock lock(mu_);
    return now_;
  }

 private:
  void WakeAll() override { changed_.NotifyAll(); }

  void RunUntil(Nanoseconds time) REQUIRES(mu_) {
    while (!ends_.empty() && ends_.top().at <= time && !lost()) {
      VirtualLane& lane = *ends_.top().lane;
      now_ = std::max(now_, ends_.top().at);
      ends_.pop();
      Finish(lane);
    }
    now_ = std::max(now_, time);
  }

  // Looks at the head until one takes time or cannot go on.
  void StartHead(VirtualLane& lane) REQUIRES(mu_) {
    using Head = VirtualLane::Head;
    lane.head = Head::kNone;
    while (!lane.queue.empty()) {
      const Command& command = lane.queue.front().command;
      if (!Reached(command.wait)) {
        lane.head = Head::kParked;
        static_cast<VirtualLane*>(command.wait.lane)->parked.push_back({&lane, command.wait.sequence});
        return;
      }
      if (command.hold && !command.hold->released) {
        lane.head = Head::kHeld;
        return;
      }
      if (command.work) return Schedule(lane);
      if (command.reached_at) *command.reached_at = now_;
      Complete(lane);
    }
  }

  void Schedule(VirtualLane& lane) REQUIRES(mu_) {
    const VirtualLane::Queued& head = lane.queue.front();
    lane.head = VirtualLane::Head::kRuns;
    lane.start = std::max(lane.free_at, head.submitted) + Delay();
    ends_.push({lane.start + head.command.cost, by_chance_ ? chance_() : rank_++, &lane});
  }

  // Half of the commands start at once; the others are late by 1 ns to 1 ms, each order of magnitude as likely.
  Nanoseconds Delay() REQUIRES(mu_) {
    if (!by_chance_) return Nanoseconds{0};
    const uint64_t draw = chance_();
    if (draw & 1) return Nanoseconds{0};
    return Nanoseconds{static_cast<int64_t>((uint64_t{1} << (draw >> 1) % 20) + (draw >> 40) % 64)};
  }

  void Finish(VirtualLane& lane) REQUIRES(mu_) {
    const std::shared_ptr<const SoftwareKernel> work = lane.queue.front().command.work;
    const bool observed = lane.queue.front().command.observed;
    DeviceStatus failure;
    if (!RunBody(*work, &failure)) return Lose(std::move(failure));
    if (observer_ && observed) observer_->OnRan(lane.id, *work, lane.start, now_);
    lane.free_at = now_;
    Complete(lane);
    StartHead(lane);
  }

  // The head has ended: whoever is parked here and has what it needs goes on.
  void Complete(VirtualLane& lane) REQUIRES(mu_) {
    lane.queue.pop_front();
    lane.completed.store(lane.completed.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    for (size_t i = 0; i < lane.parked.size();) {
      const VirtualLane::Parked parked = lane.parked[i];
      if (!lane.Reached(parked.sequence)) {
        ++i;
        continue;
      }
      lane.parked[i] = lane.parked.back();
      lane.parked.pop_back();
      parked.lane->free_at = std::max(parked.lane->free_at, now_);
      StartHead(*parked.lane);
    }
    changed_.NotifyAll();
  }

  mutable Mutex mu_;
  CondVar changed_;
  std::vector<std::unique_ptr<VirtualLane>> lanes_ GUARDED_BY(mu_);
  std::priority_queue<End, std::vector<End>, std::greater<>> ends_ GUARDED_BY(mu_);
  Nanoseconds now_ GUARDED_BY(mu_){0};
  uint64_t rank_ GUARDED_BY(mu_) = 0;
  const bool by_chance_;
  std::mt19937_64 chance_ GUARDED_BY(mu_);
};

}  // namespace

std::unique_ptr<Executor> MakeVirtualExecutor(std::shared_ptr<DeviceObserver> observer, uint64_t seed) {
  return std::make_unique<VirtualExecutor>(std::move(observer), seed);
}

}  // namespace engine::detail
