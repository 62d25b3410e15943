// Turns: clients that run plans on their own threads take turns where a processor is shared by several of them.
//
// Left to itself, each runs until its time slice ends (some milliseconds), and the run that is cut there waits for the
// slices of all others: with 64 clients on 2 cores that is the p99. A client that finds others on its processor lets them
// go first before each of its runs, so that a slice hardly ever ends inside one. Nobody waits for anybody.
//
// Threads: Take by any thread; threads of one processor share a line, and only take turns on it.
#pragma once

#include <sched.h>
#include <sys/sysinfo.h>

#include <atomic>
#include <cstddef>
#include <vector>

namespace engine::detail {

class Turns {
 public:
  Turns() : last_(static_cast<size_t>(get_nprocs_conf())) {}

  // Before a run, with nothing in hand that others may want.
  void Take() noexcept {
    static thread_local constinit bool shares = false;  // others came in our last turn; its address tells threads apart
    std::atomic<const void*>* last = &Here();
    if (!shares && last->load(std::memory_order_relaxed) == &shares) [[likely]]
      return;
    last->store(&shares, std::memory_order_relaxed);
    sched_yield();
    last = &Here();
    shares = last->load(std::memory_order_relaxed) != &shares;
    last->store(&shares, std::memory_order_relaxed);
  }

 private:
  // Who began the last run on a processor. relaxed: only decides who yields.
  struct alignas(64) Place {
    std::atomic<const void*> last{nullptr};
  };
  std::atomic<const void*>& Here() noexcept {
    const int processor = sched_getcpu();
    return last_[processor < 0 ? 0 : static_cast<size_t>(processor) % last_.size()].last;
  }
  std::vector<Place> last_;
};

}  // namespace engine::detail
