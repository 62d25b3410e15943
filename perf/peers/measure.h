// measure: the clock, wake-ups, memory and percentiles, which are the same for every contender.
// Threads:   everything here is called by the thread that runs the case.
#pragma once

#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <fstream>
#include <latch>
#include <string>
#include <utility>
#include <vector>

namespace perf {

using Clock = std::chrono::steady_clock;

inline double NsBetween(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::nano>(to - from).count();
}

// What a runner says about a case: figures by name, or why it cannot run the case.
struct Answer {
  std::vector<std::pair<std::string, double>> figures;
  std::string skip;

  static Answer Skip(std::string why) { return {{}, std::move(why)}; }
};

// Holds back the first op of a program until the case has measured what it needs.
using Gate = std::latch;

// The body of every op: it does nothing, in a way that no compiler may leave out.
inline void Body() { asm volatile(""); }

// Voluntary context switches of the whole process. Each is a thread that slept and had to be woken.
inline double Sleeps() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_nvcsw);
}

inline double ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  double total = 0, resident = 0;
  statm >> total >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE));
}

inline double MallocBytes() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<double>(info.uordblks + info.hblkhd);
}

// Keeps freed memory mapped, so that after the warm-up no contender pays for fresh pages.
inline void KeepFreedMemory() {
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the largest value that glibc accepts
}

// Sorts in place; q in [0, 1].
inline double Quantile(std::vector<double>& values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1))];
}

// What one reading of the clock adds to a latency.
inline double ClockCost() {
  std::vector<double> costs(1000);
  for (double& cost : costs) {
    const auto from = Clock::now();
    cost = NsBetween(from, Clock::now());
  }
  return Quantile(costs, 0.5);
}

// Measures time and sleeps for each operation, from its construction until Stop.
class Meter {
 public:
  Meter() : sleeps_(Sleeps()), start_(Clock::now()) {}
  Answer Stop(std::size_t n) const {
    const double ns = NsBetween(start_, Clock::now());
    const double ops = static_cast<double>(n);
    return {{{"ns_per_op", ns / ops}, {"wakeups_per_op", (Sleeps() - sleeps_) / ops}}, {}};
  }

 private:
  double sleeps_;
  Clock::time_point start_;
};

}  // namespace perf
