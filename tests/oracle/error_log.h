// ErrorLog: which errors the program was shown, by whom, and what it has to complain about. Errors are told apart by their
// root: the number of the op, or of the node, that failed first.
//
// Threads: every method on any thread.
#pragma once

#include <atomic>
#include <cstdarg>
#include <mutex>
#include <set>
#include <string>

#include "records.h"

namespace engine::oracle {

inline constexpr const char* kOpenOverFork =
    "open over a fork";  // the name of an op whose completion a fork finds open

// What bodies throw: no std::exception, because bodies may throw anything.
struct PlannedFailure {
  uint32_t root;
};
// One whose what() is null.
struct NullWhat : std::exception {
  const char* what() const noexcept override { return nullptr; }
};
struct HookFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class ErrorLog {
 public:
  static constexpr int64_t kNone = -1, kSecondCall = -2, kFurther = -3, kOther = -4;

  // Notes an error that a wait threw. Its root, or one of the constants.
  int64_t Shown(const OpError& error);
  // Notes one that WaitAll or on_unobserved reported, which they may do once.
  void Reported(const OpError& error);
  // From here on nothing may be reported: the engine is gone. `complain`: say so if it is.
  void EngineGone(bool complain) { gone_ = complain ? Gone::kComplain : Gone::kIgnore; }

  [[gnu::format(printf, 2, 3)]] void Complain(const char* format, ...);
  std::string complaints() const;
  void FillIn(History* history) const;

 private:
  enum class Gone : uint8_t { kNo, kIgnore, kComplain };
  int64_t RootOf(const OpError& error);

  mutable std::mutex mu_;
  std::set<uint32_t> shown_, reported_;
  std::string complaints_;
  // Counters and a flag that nothing is published by.
  std::atomic<uint64_t> further_{0}, second_calls_{0};
  std::atomic<Gone> gone_{Gone::kNo};
};

}  // namespace engine::oracle
