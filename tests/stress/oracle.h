// Serializability oracle. Every op records which versions it saw and what it read, and writes a hash of that and of
// its own number. Afterwards, in linear time, Check finds out whether some serial order explains it all:
//   1. each version of a Var was made by at most one op, and readers of a version saw what its writer wrote;
//   2. the order graph (writer, then its readers, then the next writer, for each Var) has no cycle;
//   3. two conflicting pushes of which one returned before the other began are ordered that way;
//   4. a serial replay in the recovered order reads and leaves the same values.
// A version without a recorded op belongs to one that was skipped: it left the value as it was.
//
// Threads: an op fills its own record; NewRecord on any thread; Check when all is over.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/access_mode.h"
#include "support/random.h"

namespace engine::test {

struct Use {
  uint32_t var;
  AccessMode mode;
  uint64_t version = 0;  // seen by a Read, made by the others
  uint64_t value = 0;    // read (Read, Update)
};

struct OpRecord {
  uint64_t id = 0;
  std::vector<Use> uses;  // each Var once
  // Ticks of one clock around the push; left as they are, they constrain nothing.
  uint64_t push_begin = 0, push_end = std::numeric_limits<uint64_t>::max();
  int runs = 0;
  bool failed = false;  // threw before it wrote
};

// What an op with number `id` that has read `inputs` (mixed) writes into `var`.
inline uint64_t Written(uint64_t id, uint64_t inputs, uint32_t var) { return MixHash(MixHash(inputs, id), var); }

class Oracle {
 public:
  explicit Oracle(size_t vars) : values_(vars) {
    for (size_t v = 0; v < vars; ++v) values_[v] = Initial(static_cast<uint32_t>(v));
  }

  OpRecord* NewRecord(std::vector<Use> uses);
  uint64_t Tick() { return clock_.fetch_add(1, std::memory_order_acq_rel); }

  // Called by the op: reads and writes as its record says. The versions must be filled in before.
  void Run(OpRecord& op, bool fails);

  // The first contradiction, or "".
  std::string Check() const;

  uint64_t value(uint32_t var) const { return values_[var]; }
  void set_value(uint32_t var, uint64_t value) { values_[var] = value; }
  size_t ops() const { return records_.size(); }
  OpRecord& record(size_t i) { return *records_[i]; }

 private:
  static uint64_t Initial(uint32_t var) { return MixHash(17, var); }
  struct Step {
    const OpRecord* op;
    const Use* use;
  };
  std::string ByVar(std::vector<std::vector<Step>>& steps) const;

  std::vector<uint64_t> values_;  // unsynchronised: the engine's order is what guards them
  std::atomic<uint64_t> clock_{1};
  std::mutex mu_;
  std::vector<std::unique_ptr<OpRecord>> records_;
};

}  // namespace engine::test
