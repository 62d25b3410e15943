// How many processors there are for this program.
#pragma once

#include <iosfwd>
#include <limits>
#include <string>

namespace engine::detail {

constexpr int kUnbounded = std::numeric_limits<int>::max();

// Those that the calling thread may run on, and that its control group has time for: a container, a batch system or taskset may
// have left it a few of the machine's. At least 1. What the group may use is read once.
int UsableProcessors();

// How many processors a process has time for by the quotas of its control group and of those around it, rounded up; kUnbounded: by
// none. `groups`: /proc/PID/cgroup, of version 1 or 2; `root`: where the groups are mounted.
int GroupProcessors(std::istream& groups, const std::string& root);

}  // namespace engine::detail
