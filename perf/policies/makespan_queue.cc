// What one would write by hand: a heap of ready nodes by rank under a mutex, and two threads, of which the caller is one. The
// ranks are the costs that the program was made with. Variant "turn": the caller alone, in the order of the file.
#include <condition_variable>
#include <mutex>
#include <queue>
#include <thread>

#include "makespan.h"

namespace {

using namespace perf;

class Queue {
 public:
  Queue(const Config& config, const Program& program)
      : program_(program), dag_(program.ToDag()), alone_(config.variant == "turn"), missing_(dag_.predecessors) {
    rank_ = engine::costmodel::FindCritical(dag_, program.cost).rank;
    if (!alone_)
      for (int i = 1; i < config.workers; ++i) helpers_.emplace_back([this] { Help(); });
  }
  ~Queue() {
    {
      std::lock_guard lock(mu_);
      over_ = true;
    }
    steps_.fetch_add(1);
    begun_.notify_all();
    for (std::thread& helper : helpers_) helper.join();
  }
  void Prepare() {
    for (int i = 0; i < 10; ++i) Step();
  }
  void Step() {
    if (alone_) {
      for (const double cost : program_.cost) Work(cost);
      return;
    }
    {
      std::lock_guard lock(mu_);
      missing_ = dag_.predecessors;
      left_ = dag_.size();
      for (uint32_t n = 0; n < dag_.size(); ++n)
        if (missing_[n] == 0) Ready(n);
      steps_.fetch_add(1);
      if (asleep_ != 0) begun_.notify_all();
    }
    Run();
  }

 private:
  static constexpr std::chrono::microseconds kLooks{100};  // for the next step, before a helper sleeps

  void Ready(uint32_t node) {
    ready_.emplace(rank_[node], node);
    count_.store(ready_.size(), std::memory_order_relaxed);
  }
  // Ends `node`, if there is one, and takes the next.
  uint32_t Exchange(uint32_t node) {
    std::lock_guard lock(mu_);
    if (node != kNone) {
      for (const uint32_t s : dag_.After(node))
        if (--missing_[s] == 0) Ready(s);
      left_.fetch_sub(1, std::memory_order_release);
    }
    if (ready_.empty()) return kNone;
    const uint32_t next = ready_.top().second;
    ready_.pop();
    count_.store(ready_.size(), std::memory_order_relaxed);
    return next;
  }
  void Run() {
    for (uint32_t node = kNone;;) {
      node = Exchange(node);
      while (node == kNone) {
        for (int i = 0; count_.load(std::memory_order_relaxed) == 0; ++i) {
          if (left_.load(std::memory_order_acquire) == 0) return;
          __builtin_ia32_pause();
          if (i % 64 == 63) std::this_thread::yield();
        }
        node = Exchange(kNone);
      }
      Work(program_.cost[node]);
    }
  }
  void Help() {
    for (uint64_t seen = 0;;) {
      const auto from = Clock::now();
      while (steps_.load() == seen && Clock::now() - from < kLooks) std::this_thread::yield();
      {
        std::unique_lock lock(mu_);
        ++asleep_;
        begun_.wait(lock, [&] { return steps_.load() != seen; });
        --asleep_;
        if (over_) return;
      }
      seen = steps_.load();
      Run();
    }
  }

  static constexpr uint32_t kNone = UINT32_MAX;
  const Program& program_;
  const engine::costmodel::Dag dag_;
  const bool alone_;
  std::vector<double> rank_;
  std::mutex mu_;
  std::condition_variable begun_;
  std::vector<uint32_t> missing_;
  std::priority_queue<std::pair<double, uint32_t>> ready_;
  int asleep_ = 0;
  bool over_ = false;
  std::atomic<std::size_t> count_{0};
  std::atomic<uint32_t> left_{0};
  std::atomic<uint64_t> steps_{0};
  std::vector<std::thread> helpers_;
};

}  // namespace

int main(int argc, char** argv) { return perf::MakespanMain<Queue>(argc, argv); }
