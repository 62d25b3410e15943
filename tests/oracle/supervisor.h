// Supervisor: runs programs in processes of their own, so that a program that crashes or hangs is named, and the others
// go on.
//
// Threads:   none. It forks, so the process must have no other thread.
// Ownership: it owns the child that runs at the moment.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "program.h"

namespace engine::oracle {

struct Verdicts {
  Totals totals;
  uint64_t bad = 0;  // how many programs were wrong, crashed or hung
};

class Supervisor {
 public:
  // Returns the program of a number; nothing: there are no more.
  using Source = std::function<std::optional<Program>(uint64_t number)>;
  using Failed = std::function<void(const Program&)>;
  Supervisor(Source source, Failed failed, bool verbose)
      : source_(std::move(source)), failed_(std::move(failed)), verbose_(verbose) {}

  // Runs all programs, but stops when the time is up, or when `most_bad` were bad.
  Verdicts Run(Clock::time_point until, uint64_t most_bad);

 private:
  struct Message;
  uint64_t RunChild(uint64_t first, Clock::time_point until, Verdicts* verdicts);
  [[noreturn]] void ChildMain(int pipe, uint64_t first, Clock::time_point until);
  const Source source_;
  const Failed failed_;
  const bool verbose_;
};

}  // namespace engine::oracle
