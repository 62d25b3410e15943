// Trace: what ran where and when, what it waited for, and which ops came behind which. Recording only observes: it never
// changes what runs, or in which order.
//
// Threads: each thread writes records of its own, and shares nothing while it does. Waits go into one log of the process,
//          because stages and the interpreter belong to no engine.
// Order:   an op's `after` follows from the order in which ops that name the same Var ran; nothing is added to a push or
//          to an op while no trace is on.
// Times are nanoseconds of the steady clock since StartTrace.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/access_mode.h"

namespace engine {

// A Var that an op named.
struct TraceUse {
  const char* name;
  uint64_t var;  // number of the Var in the trace
  AccessMode mode;
};

struct TraceEvent {
  const char* name;            // of the op; static
  const char* thread;          // its name: "cpu/0", "io/1", "caller", or what NameCallerThread was given; of an op on a
                               // device: the name of its lane, "gpu0/2"
  int64_t begin_ns;            // of its body; on a device: of the call that issued it
  int64_t end_ns;              // of its body
  uint64_t op;                 // number of the event in its trace, by begin_ns
  bool skipped;                // the op did not run, and passed an error on
  int64_t pushed_ns = -1;      // -1: before the trace began; of a node: the start of its run
  int64_t ready_ns = 0;        // when it had been pushed, and all that it came behind had ended
  int64_t settled_ns = -1;     // of an asynchronous op: when its Completion was called; else -1
  const char* pusher = "";     // name of the thread that pushed it
  const char* plan = nullptr;  // of a node: its plan's name
  uint64_t run = 0;            // of a node: number of its run in the trace, from 1
  const char* file = "";       // where it was pushed or recorded
  uint32_t line = 0;
  std::vector<uint64_t> after = {};  // the ops that it had to wait for, ascending
  std::vector<TraceUse> uses = {};
};

// Why a thread waited. The order is that of WaitCauseName.
enum class WaitCause : uint8_t {
  kGil,         // for Python's interpreter lock, before the body of an op
  kStageEmpty,  // to take an item of a stage
  kStageFull,   // to put an item into a stage, or to begin one
  kVar,         // Wait for a Var or a run
  kAll,         // WaitAll
  kRoom         // a push at the soft bound on pending ops
};
const char* WaitCauseName(WaitCause cause) noexcept;  // "gil", "stage empty", ...

struct TraceWait {
  WaitCause cause;
  const char* name;  // of the stage or the Var; may be empty
  const char* thread;
  int64_t begin_ns;
  int64_t end_ns;
};

struct Trace {
  std::vector<TraceEvent> events = {};    // ops that have run or were skipped, by begin_ns
  std::vector<TraceWait> waits = {};      // by begin_ns
  std::vector<std::string> threads = {};  // all workers of the pools, also those that ran nothing
  int64_t length_ns = 0;                  // from StartTrace to StopTrace
  uint64_t pending = 0;                   // ops that were pushed, and had not run at StopTrace
  uint64_t left_out = 0;                  // records for which there was no room (docs/limits.md)
};

// Names the calling thread, which is no worker, for what it runs from now on; without a name it is "caller". Stages
// name the threads of their producers after themselves.
void NameCallerThread(std::string_view name);

// Chrome trace-event JSON, which Perfetto and chrome://tracing open. Each thread is a track, as is each lane
// of a device, and each `after` is a flow.
std::string ChromeTraceJson(const Trace& trace);

namespace detail {
// How many engines are traced. relaxed: a wait that overlaps the start of a trace may be left out.
extern std::atomic<uint32_t> g_traces;
}  // namespace detail

// TracedWait: enters the time from its construction to its destruction into the traces that are on. Costs a load and a
// branch while none is.
class TracedWait {
 public:
  using Clock = std::chrono::steady_clock;
  explicit TracedWait(WaitCause cause, std::string_view name = {}) noexcept
      : cause_(cause), on_(detail::g_traces.load(std::memory_order_relaxed) != 0), name_(name) {
    if (on_) [[unlikely]]
      begin_ = Clock::now();
  }
  ~TracedWait() { End(); }
  TracedWait(const TracedWait&) = delete;
  // Ends it earlier.
  void End() noexcept {
    if (on_) [[unlikely]]
      Add();
    on_ = false;
  }

 private:
  void Add() noexcept;

  WaitCause cause_;
  bool on_;
  std::string_view name_;  // lives as long as this object
  Clock::time_point begin_{};
};

}  // namespace engine
