// How many processors there are for this program.
#pragma once

#include <sched.h>

#include <algorithm>
#include <thread>

namespace engine::detail {

// Those that the calling thread may run on: a container, a batch system or taskset may have left it a few of the machine's.
inline int UsableProcessors() noexcept {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) return std::max(1, CPU_COUNT(&allowed));
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));  // more than a cpu_set_t can name
}

}  // namespace engine::detail
