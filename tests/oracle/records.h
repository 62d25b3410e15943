// Records: what a random program notes about itself while it runs, and what the checks read when it is over.
//
// Threads:   the thread that runs an op fills its record. The engine's order makes that the only thread at that time.
// Ownership: the World owns the records; a History points to them.
#pragma once

#include <atomic>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "support/random.h"

namespace engine::oracle {

using test::MixHash;
using test::Random;

inline constexpr uint64_t kNever = ~uint64_t{0};

// One clock of the process. relaxed: it must not order bodies that the engine forgot to order, because TSan would then
// not notice them.
inline std::atomic<uint64_t> g_tick{1};
inline uint64_t Tick() { return g_tick.fetch_add(1, std::memory_order_relaxed); }

struct OpRecord;
// One Var of one op: its access mode, its place in the caller's lists, and what the op saw of it.
struct Use {
  uint32_t var;
  AccessMode mode;
  uint32_t listed;
  uint64_t version = kNever;  // a reader sees it; updates and writes make it
  uint64_t value = 0;         // seen by reads and updates
  OpRecord* run = nullptr;    // the Var is that of this run
};

// How an op fails.
enum class Failure : uint8_t {
  kNone,
  kBeforeWriting,
  kAfterWriting,
  kByCompletion,  // asynchronous: by Completion::Fail
  kDropped,       // asynchronous: its completion is dropped
  kWithheld,      // asynchronous: its completion does not come before the engine's end
};

// A node in one run of a plan. Its `root` tells it apart from other nodes and runs in errors.
struct NodeRecord {
  std::vector<Use> uses;
  bool always = false;
  uint32_t root = 0;
  Failure failure = Failure::kNone;
  int runs = 0;
  bool failed = false, wrote = false;
  uint64_t run_begin = 0, run_end = 0;
};

enum class PushEnd : uint8_t { kUnknown, kAccepted, kRefused, kNoRoom, kNoMemory };

// An op, or a run of a plan, which then has nodes.
struct OpRecord {
  uint32_t id = 0;
  uint64_t seed = 0;  // decides what its body does
  int depth = 0;      // inside how many bodies it was pushed
  std::vector<Use> uses;
  bool always = false, asynchronous = false, completes_twice = false, is_operator = false, on_device = false;
  bool may_be_refused = false;  // the system may refuse what the engine needs to run it
  bool raises = false;          // null errors: its body may throw something without an identity
  int scope = -1;
  Failure failure = Failure::kNone;

  PushEnd push = PushEnd::kUnknown;
  uint64_t push_begin = 0, push_end = kNever;
  int runs = 0, skips = 0, closures_destroyed = 0, kernels = 0;
  bool failed = false, wrote = false, changed_while_held = false;
  uint64_t run_begin = 0, run_end = 0, skip_tick = 0;
  std::vector<NodeRecord> nodes;
  static constexpr uint32_t kNoVar = ~0u;
  uint32_t run_var = kNoVar;      // of a run: its own Var, as a Var of the history, which only the run writes
  uint32_t out_var = kNoVar;      // of a run: the Var of its output, which only the run writes
  uint32_t out_node = 0;          // and the node that makes the output
  uint64_t run_version = kNever;  // of that Var behind the run: frames and their Vars are used again; set by the checks

  uint32_t index = 0;  // its number among the accepted ops; set by the checks
  bool accepted() const { return push == PushEnd::kAccepted; }
};

// The value that an op leaves in a Var. An update leaves a hash of the value before.
inline uint64_t InitialValue(uint32_t var) { return MixHash(7, var); }
inline uint64_t WrittenValue(AccessMode mode, uint64_t before, uint32_t var, uint32_t root) {
  return mode == AccessMode::kUpdate ? MixHash(before, root) : MixHash(var, root);
}

struct ClearRecord {
  uint32_t var;
  uint64_t begin, end;
};

struct WaitRecord {
  static constexpr uint32_t kEverything = ~0u;
  uint32_t var = kEverything;  // kEverything, or the Var that was waited for; of a run: kEverything too
  bool to_write = false;
  uint64_t begin = 0, end = 0;
  int64_t root = -1;              // root of the error that the wait threw; -1: it threw none
  const OpRecord* run = nullptr;  // the run that was waited for (Run::Wait)
  std::vector<std::string> path;
};

// When something happened to a Var or a scope, if it happened.
struct Interval {
  uint64_t begin = kNever, end = kNever;
};

// Everything that the checks look at.
struct History {
  std::vector<OpRecord*> ops;
  std::vector<std::vector<ClearRecord>> clears;  // by Var
  std::vector<Interval> deletions;               // by Var
  std::vector<uint64_t> values;                  // by Var, at the end
  std::vector<uint64_t> versions;                // of the Vars that were never deleted
  std::vector<Interval> cancels;                 // by scope
  std::vector<WaitRecord> waits;
  Interval shutdown;  // when it ran beside the pushers
  uint64_t operator_runs = 0, operator_pushes = 0;
  std::set<uint32_t> shown;                                                     // roots of the errors that somebody saw
  uint64_t further = 0;                                                         // errors that were only counted
  uint64_t second_calls = 0, second_calls_in_time = 0, second_calls_shown = 0;  // of completions
  EngineStats stats;
  bool has_stats = false;
};

// What a program consisted of, for the summary.
struct Totals {
  uint64_t seeds = 0, ops = 0, skipped = 0, failed = 0, waits = 0, forks = 0;
  Totals& operator+=(const Totals& o) {
    seeds += o.seeds, ops += o.ops, skipped += o.skipped, failed += o.failed, waits += o.waits, forks += o.forks;
    return *this;
  }
};

}  // namespace engine::oracle
