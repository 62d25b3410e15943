// Verdict: whether a history is one that docs/concepts.md allows.
//
//   once       every accepted op ran or was skipped once, and its closure was destroyed once; counters add up
//   order      the writers of each Var have the versions 1..n, each once; readers and writers of all Vars form no cycle
//   real time  if a push returned before another began and the two conflict, the first op comes before the second
//   overlap    conflicting bodies, completions and kernels do not overlap in time
//   values     every value that was seen, or is left at the end, is that of a serial replay in the order that was found
//   errors     a replay of poison says for each op whether it had to run or be skipped, for each wait what it may throw
//   waits      everything that a wait covers has ended when it returns
//   unseen     every error has been shown by a wait, by WaitAll or on_unobserved, or is among the counted ones
//
// Threads: none; pure, except that it fills in the versions of runs.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "error_log.h"
#include "records.h"

namespace engine::oracle {

class Verdict {
 public:
  Verdict(History& history, ErrorLog& log) : h_(history), log_(log) {}
  void Check();
  Totals totals() const { return totals_; }

 private:
  // Roots of the errors that a Var may have at some version; kClean: it may have none. There are several if clears,
  // cancels or pushes overlapped in time.
  using Errors = std::set<int64_t>;
  static constexpr int64_t kClean = -1;

  struct VarHistory {
    std::vector<OpRecord*> writers;               // by version - 1
    std::vector<std::vector<OpRecord*>> readers;  // by version
    std::vector<Errors> errors;                   // by version, after its writer
    std::vector<uint64_t> values;                 // by version
  };
  // What one op finds in a Var, and what it leaves there.
  struct Now {
    Errors errors;
    uint64_t value;
  };
  enum class Cancelled : uint8_t { kNo, kMaybe, kSurely };

  // check_once.cc
  void Once();
  void OneOp(const OpRecord& op);
  void Stats();
  bool RunVersions();

  // check_order.cc
  bool Versions();
  bool SerialOrder();

  // check_time.cc
  void RealTimeAndOverlap();
  static uint64_t BeginOf(const OpRecord& op, uint32_t var);
  static uint64_t EndOf(const OpRecord& op, uint32_t var);
  static bool EndedBy(const OpRecord& op, uint64_t tick);

  // check_replay.cc
  void Replay();
  Errors Step(const OpRecord& op, uint32_t root, const std::vector<Use>& uses, bool always, bool ran, bool failed,
              bool wrote, Cancelled cancelled, std::map<uint32_t, Now>& now);
  Errors WithClears(uint32_t var, size_t version, uint64_t begin, uint64_t end) const;
  Cancelled CancelOf(const OpRecord& op) const;

  // check_waits.cc
  void Waits();
  void WaitForAll(const WaitRecord& wait);
  void WaitForRun(const WaitRecord& wait);
  void WaitForVar(const WaitRecord& wait, const std::map<std::string, const OpRecord*>& by_name);
  void Unseen();

  History& h_;
  ErrorLog& log_;
  Totals totals_;
  std::vector<OpRecord*> ops_;    // the accepted ops
  std::vector<OpRecord*> order_;  // the accepted ops, in a serial order that explains everything
  std::vector<VarHistory> vars_;
  std::set<uint32_t> roots_;  // roots of errors that somebody must be shown
  // Roots of cancelled ops, which waits throw, and WaitAll need not; and of ops to which the system refused something.
  std::set<uint32_t> may_show_;
  std::map<const OpRecord*, Errors> of_run_;
};

}  // namespace engine::oracle
