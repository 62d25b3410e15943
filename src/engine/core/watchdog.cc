#include "core/watchdog.h"

#include <cstdio>

#include "base/make_thread.h"
#include "core/core.h"
#include "core/hook_frame.h"

namespace engine::detail {

void Watchdog::Start() {
  if (core_.options().stall_timeout.count() > 0 && !thread_.joinable())
    thread_ = MakeThread("a thread for the watchdog", [this] { Main(); });
}

void Watchdog::Stop() {
  if (!thread_.joinable()) return;
  stop_.store(1, std::memory_order_release);
  FutexWake(stop_, 1);
  thread_.join();
}

// Looks four times in each timeout, and reports each stall once.
void Watchdog::Main() {
  const EngineOptions& options = core_.options();
  Slots& slots = core_.slots();
  const auto timeout = Timeout(options.stall_timeout).nanoseconds();
  uint64_t last = slots.Completed();
  auto since = Clock::now();
  bool reported = false;
  while (stop_.load(std::memory_order_acquire) == 0) {
    FutexWait(stop_, 0, After(timeout / 4));
    if (slots.Pending() != 0) core_.AskDevices();  // what has ended is known at the next look
    const uint64_t mark = slots.Completed();
    if (mark != last || slots.Pending() == 0) {
      last = mark;
      since = Clock::now();
      reported = false;
      continue;
    }
    if (reported || Clock::now() - since < timeout) continue;
    const std::string report =
        "engine: no progress for " + std::to_string(options.stall_timeout.count()) + " ms; " + core_.DescribePending();
    if (slots.Completed() != mark || slots.Pending() == 0) continue;  // the report is out of date
    reported = true;
    if (options.on_stall) {
      RunHook(&core_, HookFrame::Kind::kStall, "on_stall", [&] { options.on_stall(report); });
    } else {
      std::fputs(report.c_str(), stderr);
    }
  }
}

}  // namespace engine::detail
