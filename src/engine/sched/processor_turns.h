// ProcessorTurns: clients that run plans on their own threads take turns if several of them share a processor.
//
// Without turns each client runs until its time slice ends (some milliseconds), and a run that is cut there waits for
// the slices of all other clients: with 64 clients on 2 cores that is the p99. A client that finds others on its
// processor yields to them before each of its runs, so a slice hardly ever ends inside a run. Nobody waits for anybody.
//
// Threads: any thread may call Take. Threads on one processor share a cache line, and write it only when they take
//          turns.
#pragma once

#include <sched.h>
#include <sys/sysinfo.h>

#include <atomic>
#include <cstddef>
#include <vector>

namespace engine::detail {

class ProcessorTurns {
 public:
  ProcessorTurns() : last_(static_cast<size_t>(get_nprocs_conf())) {}

  // Called before a run, while the caller has nothing that others may want.
  void Take() noexcept {
    static thread_local constinit bool shares = false;  // other threads came in our last turn. The address of `shares`
                                                        // identifies this thread
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
  // Who began the last run on a processor. relaxed: it decides only who yields.
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
