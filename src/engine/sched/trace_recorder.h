// TraceRing: the records of one thread slot. The slot's thread adds them; StopTrace collects those of all slots and makes
// the trace of them (trace_build.h).
//
// One flag, which is rarely written, starts and stops the recording. While it is off, an op pays one predictable
// branch, which it shares with errors, scopes and devices; a push pays none, because it looks at its gate anyway.
#pragma once

#include <cstdint>
#include <vector>

#include "base/sync.h"
#include "engine/trace.h"

namespace engine::detail {

enum class TraceKind : uint8_t {
  kRan,      // a body, or a node of a run
  kSkipped,  // the same, without a body
  kPushed,   // a registration
  kDeleted,  // the registration of a Var's deletion: what comes later is another Var
  kSettled   // the Completion of an asynchronous op was called
};

// One Var, or one value of a run, that a record names.
struct TraceTouch {
  const char* name;  // null: a value, of which there is one writer
  uint64_t key;      // address of the Var, or number of the value
  AccessMode mode;
};

struct TraceRecord {
  TraceKind kind = TraceKind::kRan;
  const char* name = "";
  const char* thread = nullptr;  // its name; null: the unnamed thread `thread_number`
  uint32_t thread_number = 0;
  uint32_t line = 0;
  const char* file = "";
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  // Addresses of blocks: of the op; of a node's run. A block is used again only after its op, so the last push of that
  // address is the op's.
  const void* op = nullptr;
  const void* run = nullptr;
  uint32_t first_touch = 0;  // in the ring
  uint32_t touches = 0;
};

// What the slots have recorded, together.
struct TraceRecords {
  std::vector<TraceRecord> records;
  std::vector<TraceTouch> touches;
  uint64_t left_out = 0;
};

class TraceRing {
 public:
  static constexpr size_t kMostEvents = size_t{1} << 20;  // for each slot; later events are left out
  void Add(TraceRecord record, const std::vector<TraceTouch>& touches = {}) EXCLUDES(mu_) {
    MutexLock lock(mu_);  // uncontended, except while StopTrace collects
    if (mine_.records.size() >= kMostEvents) {
      ++mine_.left_out;
      return;
    }
    record.first_touch = static_cast<uint32_t>(mine_.touches.size());
    record.touches = static_cast<uint32_t>(touches.size());
    mine_.touches.insert(mine_.touches.end(), touches.begin(), touches.end());
    mine_.records.push_back(record);
  }
  void MoveTo(TraceRecords& all) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    const auto shift = static_cast<uint32_t>(all.touches.size());
    for (TraceRecord& record : mine_.records) {
      record.first_touch += shift;
      all.records.push_back(record);
    }
    all.touches.insert(all.touches.end(), mine_.touches.begin(), mine_.touches.end());
    all.left_out += mine_.left_out;
    mine_ = {};
  }

 private:
  Mutex mu_;
  TraceRecords mine_ GUARDED_BY(mu_);
};

}  // namespace engine::detail
