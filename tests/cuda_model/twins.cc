// The kernels of tests/conformance/kernels.cu and perf/gpu/kernels.cu.
#include <algorithm>
#include <thread>

#include "twins.h"

namespace cuda_model {
namespace {

int64_t Now() {
  return std::chrono::duration_cast<Nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// As many elements as there are threads, at most.
void Set(Launch& launch, int32_t* to, int count, int32_t value) {
  const auto n = std::min(launch.threads, static_cast<uint64_t>(std::max(count, 0)));
  if (launch.Touch(to, n * sizeof *to)) std::fill_n(to, n, value);
}
void Axpy(Launch& launch, int32_t* y, const int32_t* x, int32_t a, int count) {
  const auto n = std::min(launch.threads, static_cast<uint64_t>(std::max(count, 0)));
  if (!launch.Touch(y, n * sizeof *y) || !launch.Touch(x, n * sizeof *x)) return;
  for (uint64_t i = 0; i < n; ++i) y[i] += a * x[i];
}

// Sleeps the most of it: streams have more threads than there are cores.
void SpinUntil(int64_t end) {
  if (const int64_t left = end - Now(); left > 100'000) std::this_thread::sleep_for(Nanoseconds(left - 60'000));
  while (Now() < end) {
  }
}
void Spin(Launch&, int64_t nanoseconds) { SpinUntil(Now() + nanoseconds); }

struct Stamp {
  int64_t start, end;
};
void StampedSpin(Launch& launch, int64_t nanoseconds, Stamp* stamp) {
  if (nanoseconds == 0 && !stamp) return;
  const int64_t start = Now();
  SpinUntil(start + nanoseconds);
  if (stamp && launch.Touch(stamp, sizeof *stamp)) *stamp = {start, Now()};
}

void Hold(Launch& launch, const volatile int32_t* flag) {
  if (!launch.Touch(const_cast<const int32_t*>(flag), sizeof *flag)) return;
  const int64_t end = Now() + 20'000'000'000;
  while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) == 0 && Now() < end)
    std::this_thread::sleep_for(std::chrono::microseconds(20));
}

}  // namespace

const std::vector<Twin>& Twins() {
  static const std::vector<Twin>& all = *new std::vector<Twin>{
      TwinOf<Set>::Make("Set(int*, int, int)"),
      TwinOf<Axpy>::Make("Axpy(int*, int const*, int, int)"),
      TwinOf<Spin>::Make("Spin(long)"),
      TwinOf<Hold>::Make("Hold(int const volatile*)"),
      TwinOf<StampedSpin>::Make("Spin(long, engine::perf::Stamp*)"),
  };
  return all;
}

}  // namespace cuda_model
