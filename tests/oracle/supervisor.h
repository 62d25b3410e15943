// Supervisor: runs programs in processes of their own, so that one that crashes or hangs is named, and the others go on.
//
// Threads:   none of its own; it forks, so the process must have no other.
// Ownership: of the child that runs just now.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "program.h"

namespace engine::oracle {

struct Verdicts {
  Totals totals;
  uint64_t bad = 0;  // programs that were wrong, crashed, or hung
};

class Supervisor {
 public:
  // The programs by number; none: there are no more.
  using Source = std::function<std::optional<Program>(uint64_t number)>;
  using Failed = std::function<void(const Program&)>;
  Supervisor(Source source, Failed failed, bool verbose)
      : source_(std::move(source)), failed_(std::move(failed)), verbose_(verbose) {}

  // Runs them all, or until the time is up, or `most_bad` were bad.
  Verdicts Run(std::chrono::steady_clock::time_point until, uint64_t most_bad);

 private:
  struct Message;
  uint64_t RunChild(uint64_t first, std::chrono::steady_clock::time_point until, Verdicts* verdicts);
  [[noreturn]] void ChildMain(int pipe, uint64_t first, std::chrono::steady_clock::time_point until);
  const Source source_;
  const Failed failed_;
  const bool verbose_;
};

}  // namespace engine::oracle
