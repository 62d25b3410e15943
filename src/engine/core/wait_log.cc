#include "core/wait_log.h"

#include <new>

#include "base/fork.h"
#include "base/sync.h"
#include "engine/op.h"

namespace engine {
namespace detail {

constinit std::atomic<uint32_t> g_traces{0};
thread_local constinit const char* t_name_in_body = nullptr;

namespace {

thread_local constinit const char* t_caller_name = nullptr;

struct Log {
  Mutex mu;
  std::vector<LoggedWait> waits GUARDED_BY(mu);
};
Log& g_log = *new Log;  // never destroyed: threads that end after main may wait

}  // namespace

const char* ThreadName() noexcept { return t_name_in_body ? t_name_in_body : t_caller_name; }

uint32_t ThreadNumber() noexcept {
  static constinit std::atomic<uint32_t> last{0};
  thread_local const uint32_t mine = last.fetch_add(1, std::memory_order_relaxed);
  return mine;
}

void WaitLog::Begin() { g_traces.fetch_add(1, std::memory_order_relaxed); }

std::vector<LoggedWait> WaitLog::End(std::chrono::steady_clock::time_point since) {
  Log& log = g_log;
  std::vector<LoggedWait> found;
  MutexLock lock(log.mu);
  for (const LoggedWait& wait : log.waits)
    if (wait.end >= since) found.push_back(wait);
  if (g_traces.fetch_sub(1, std::memory_order_relaxed) == 1) log.waits = {};
  return found;
}

void WaitLog::AfterForkInChild() {
  g_traces.store(0, std::memory_order_relaxed);
  Renew(g_log);
}

}  // namespace detail

void TracedWait::Add() noexcept try {
  const auto end = Clock::now();
  // Nearly every body takes the GIL in less, and then nobody else had it.
  if (cause_ == WaitCause::kGil && end - begin_ < std::chrono::microseconds(2)) return;
  const char* const name = name_.empty() ? "" : Name::Intern(name_).c_str();
  detail::Log& log = detail::g_log;
  detail::MutexLock lock(log.mu);
  // A wait that outlasts the last trace is nobody's.
  if (detail::g_traces.load(std::memory_order_relaxed) == 0 || log.waits.size() >= detail::WaitLog::kMostWaits) return;
  log.waits.push_back({cause_, name, detail::ThreadName(), detail::ThreadNumber(), begin_, end});
} catch (const std::bad_alloc&) {
}

const char* WaitCauseName(WaitCause cause) noexcept {
  static constexpr const char* kNames[] = {"gil", "stage empty", "stage full", "var", "all", "room"};
  return kNames[static_cast<uint8_t>(cause)];
}

void NameCallerThread(std::string_view name) { detail::t_caller_name = Name::Intern(name).c_str(); }

}  // namespace engine
