#include "base/processors.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <fstream>
#include <string_view>
#include <thread>

namespace engine::detail {
namespace {

// Microseconds; 0: "max", -1, or no number.
long Microseconds(std::string_view text) {
  long value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return std::max(0L, value);
}

int Processors(std::string_view quota, std::string_view period) {
  const long of = Microseconds(period), time = Microseconds(quota);
  return time == 0 || of == 0 ? kUnbounded : static_cast<int>(std::min<long>((time + of - 1) / of, kUnbounded));
}

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

int ProcessorsOf(const std::string& folder, bool unified) {
  if (!unified) return Processors(FirstLine(folder + "/cpu.cfs_quota_us"), FirstLine(folder + "/cpu.cfs_period_us"));
  const std::string line = FirstLine(folder + "/cpu.max");  // QUOTA PERIOD
  const size_t space = line.find(' ');
  return space == line.npos ? kUnbounded : Processors({line.data(), space}, std::string_view(line).substr(space + 1));
}

}  // namespace

int GroupProcessors(std::istream& groups, const std::string& root) {
  int least = kUnbounded;
  for (std::string line; std::getline(groups, line);) {  // NUMBER:CONTROLLERS:PATH; version 2 names no controllers
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool unified = controllers == ",,";
    if (!unified && controllers.find(",cpu,") == controllers.npos) continue;
    for (std::string path = line.substr(second + 1);; path.resize(path.rfind('/'))) {
      least = std::min(least, ProcessorsOf(root + (unified ? "" : "/cpu") + path, unified));
      if (path.rfind('/') == path.npos) break;
    }
  }
  return least;
}

int UsableProcessors() {
  // 0: nobody has asked yet. No static that makes itself: a fork meanwhile would leave it locked in the child. Two threads may
  // both read the files, and find the same. relaxed: the number is all there is.
  static constinit std::atomic<int> known{0};
  int bound = known.load(std::memory_order_relaxed);
  if (bound == 0) {
    std::ifstream groups("/proc/self/cgroup");
    known.store(bound = GroupProcessors(groups, "/sys/fs/cgroup"), std::memory_order_relaxed);
  }
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) return std::max(1, std::min(bound, CPU_COUNT(&allowed)));
  // More than a cpu_set_t can name.
  return std::max(1, std::min(bound, static_cast<int>(std::thread::hardware_concurrency())));
}

}  // namespace engine::detail
