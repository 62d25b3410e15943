// Records: what a random program notes about itself while it runs, and what the checks read when it is over.
//
// Threads:   a record is filled by the thread that runs its op, which the engine's order makes the only one at that time.
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

// One clock of the process. Relaxed: it must not order bodies that the engine forgot to order, or TSan would not see them.
inline std::atomic<uint64_t> g_tick{1};
inline uint64_t Tick() { return g_tick.fetch_add(1, std::memory_order_relaxed); }

enum class Mode : uint8_t { kRead, kUpdate, kWrite };

// One Var of one op: in which role, where it stood in the caller's lists, and what the op saw of it.
struct Use {
  uint32_t var;
  Mode mode;
  uint32_t listed;
  uint64_t version = kNever;  // seen by a read, made by the others
  uint64_t value = 0;         // seen by a read or an update
};

// How an op is to fail.
enum class Failure : uint8_t {
  kNone,
  kBeforeWriting,
  kAfterWriting,
  kByCompletion,  // asynchronous: Completion::Fail
  kDropped,       // asynchronous: the completion is dropped
  kWithheld,      // asynchronous: the completion does not come before the engine's end
};

// A node of one run of a plan. Node and run are told apart in errors by `root`.
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

// An op, or a run of a plan (which then has nodes).
struct OpRecord {
  uint32_t id = 0;
  uint64_t seed = 0;  // of what its body does
  int depth = 0;      // how many bodies it was pushed inside of
  std::vector<Use> uses;
  bool always = false, asynchronous = false, completes_twice = false, is_operator = false, on_device = false;
  bool raises = false;  // null errors: a body may throw what has no identity
  int scope = -1;
  Failure failure = Failure::kNone;

  PushEnd push = PushEnd::kUnknown;
  uint64_t push_begin = 0, push_end = kNever;
  int runs = 0, skips = 0, closures_destroyed = 0, kernels = 0;
  bool failed = false, wrote = false, changed_while_held = false;
  uint64_t run_begin = 0, run_end = 0, skip_tick = 0;
  std::vector<NodeRecord> nodes;

  uint32_t index = 0;  // among the accepted ones; the checks'
  bool accepted() const { return push == PushEnd::kAccepted; }
};

// What ops leave in a Var: of an update, a hash of what was there.
inline uint64_t InitialValue(uint32_t var) { return MixHash(7, var); }
inline uint64_t WrittenValue(Mode mode, uint64_t before, uint32_t var, uint32_t root) {
  return mode == Mode::kUpdate ? MixHash(before, root) : MixHash(var, root);
}

struct ClearRecord {
  uint32_t var;
  uint64_t begin, end;
};

struct WaitRecord {
  static constexpr uint32_t kEverything = ~0u;
  uint32_t var = kEverything;  // or of a run
  bool to_write = false;
  uint64_t begin = 0, end = 0;
  int64_t root = -1;              // of the error that it threw; -1: none
  const OpRecord* run = nullptr;  // Run::Wait
  std::vector<std::string> path;
};

// When something happened to a Var or a scope, if it did.
struct Interval {
  uint64_t begin = kNever, end = kNever;
};

// All that the checks look at.
struct History {
  std::vector<OpRecord*> ops;
  std::vector<std::vector<ClearRecord>> clears;  // by Var
  std::vector<Interval> deletions;               // by Var
  std::vector<uint64_t> values;                  // by Var, at the end
  std::vector<uint64_t> versions;                // of the Vars that lasted
  std::vector<Interval> cancels;                 // by scope
  std::vector<WaitRecord> waits;
  Interval shutdown;  // beside the pushers
  uint64_t operator_runs = 0, operator_pushes = 0;
  std::set<uint32_t> shown;                                                     // roots of errors that somebody saw
  uint64_t further = 0;                                                         // errors that were counted only
  uint64_t second_calls = 0, second_calls_in_time = 0, second_calls_shown = 0;  // of completions
  EngineStats stats;
  bool has_stats = false;
};

// What a program amounted to, for the summary.
struct Totals {
  uint64_t seeds = 0, ops = 0, skipped = 0, failed = 0, waits = 0, forks = 0;
  Totals& operator+=(const Totals& o) {
    seeds += o.seeds, ops += o.ops, skipped += o.skipped, failed += o.failed, waits += o.waits, forks += o.forks;
    return *this;
  }
};

}  // namespace engine::oracle
