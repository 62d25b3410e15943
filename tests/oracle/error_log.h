// ErrorLog: which errors the program was shown and by whom, and what is wrong with them. An error is identified by its
// root: the number of the op, or of the node, that failed first.
//
// Threads: every method may be called on any thread.
#pragma once

#include <atomic>
#include <cstdarg>
#include <mutex>
#include <set>
#include <string>

#include "records.h"

namespace engine::oracle {

// Names of ops that are pending while the process forks: one whose completion is open, and three on devices.
inline constexpr const char* kOpenOverFork = "open over a fork";
inline constexpr const char* kKernelOverFork = "kernel over a fork";
inline constexpr const char* kBulkOverFork = "bulk over a fork";
inline constexpr const char* kHeldOpOverFork = "held op over a fork";

// What bodies throw. It is no std::exception, because bodies may throw anything.
struct PlannedFailure {
  uint32_t root;
};
// An exception whose what() returns null.
struct NullWhat : std::exception {
  const char* what() const noexcept override { return nullptr; }
};
struct HookFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class ErrorLog {
 public:
  static constexpr int64_t kNone = -1, kSecondCall = -2, kFurther = -3, kOther = -4;

  // Errors of the system's refusals, and of collectives, are what the program is about.
  void Allow(bool refusals, bool failing_collectives) {
    refusals_ = refusals;
    failing_collectives_ = failing_collectives;
  }
  // Notes an error that a wait threw. Returns its root, or one of the constants.
  int64_t Shown(const OpError& error);
  // Notes an error that WaitAll or on_unobserved reported. Each error may be reported once.
  void Reported(const OpError& error);
  // The engine is gone: from here on nothing may be reported. `complain`: whether a later report is noted as wrong.
  void EngineGone(bool complain) { gone_ = complain ? Gone::kComplain : Gone::kIgnore; }

  [[gnu::format(printf, 2, 3)]] void Complain(const char* format, ...);
  std::string complaints() const;
  void FillIn(History* history) const;

 private:
  enum class Gone : uint8_t { kNo, kIgnore, kComplain };
  int64_t RootOf(const OpError& error);

  bool refusals_ = false, failing_collectives_ = false;  // set before the program begins
  mutable std::mutex mu_;
  std::set<uint32_t> shown_, reported_;
  std::string complaints_;
  // Counters and a flag, which publish nothing.
  std::atomic<uint64_t> further_{0}, second_calls_{0};
  std::atomic<Gone> gone_{Gone::kNo};
};

}  // namespace engine::oracle
