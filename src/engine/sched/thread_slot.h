// ThreadSlot: what one thread needs to push to one engine and to complete its ops, without sharing a cache line.
//
// Threads:   the slot's thread uses everything; other threads may read the atomics and the counters.
// Ownership: the engine owns slots. A thread takes one on its first call and gives it back when it ends; the next new
//            thread takes it over, with its counters and queues. A worker's slot belongs to the worker, and goes to a
//            stand-in together with the role.
#pragma once

#include <array>
#include <atomic>

#include "base/engine_limits.h"
#include "order/op_record.h"
#include "sched/ready_queue.h"
#include "sched/trace_recorder.h"

namespace engine::detail {

class EngineCore;
struct Worker;

struct alignas(64) ThreadSlot {
  ThreadSlot(EngineCore* engine_core, Arena& ops, Arena& vars, Arena& completions)
      : core(engine_core), cache(ops), var_cache(vars), completion_cache(completions) {
    queued_behind.reserve(8);
  }

  EngineCore* const core;
  BlockCache cache;  // ops and groups
  BlockCache var_cache;
  BlockCache completion_cache;
  Worker* worker = nullptr;
  std::array<std::unique_ptr<ReadyQueue>, kMaxPools> queues;  // by number of the pool; the pools list them too
  std::vector<OpChain*> queued_behind;  // chains whose ops the current registration queued behind; released after it
  std::vector<std::byte> scratch;       // for a registration of many accesses; enlarged before it, and kept

  void ReserveScratch(size_t accesses) {
    if (const size_t bytes = Protocol::ScratchBytes(accesses); scratch.size() < bytes) scratch.resize(bytes);
  }

  // Whether everything that this thread queued for that pool has been taken.
  bool NothingQueued(uint8_t pool) const {
    const ReadyQueue* queue = queues[pool].get();
    if (!queue) return true;
    for (const ReadyDeque& deque : queue->level)
      if (!deque.Empty()) return false;
    return true;
  }

  // The frequent side of the push gate (gate.h).
  alignas(64) std::atomic<uint32_t> pushing{0};
  // By parity of the WaitAll epoch. AddRelease publishes that the ops are settled. Partner: the sums of Slots.
  OwnedCounter pushed[2];
  OwnedCounter completed[2];
  // Odd: this thread runs ops that no worker's state tells of. It drives the caller pool, from its first op there until it finds none or
  // leaves; or its op has lent the worker's role. Even in a wait inside the op. Partner: Admission::OthersRun.
  OwnedCounter own_runs;
  OwnedCounter skipped, inlined, merged, stolen, backpressure_waits;
  TraceRing trace;
  bool taken = false;  // under the lock of Slots
  // If this thread has completed an op of an epoch that some WaitAll awaits, and has not notified it yet: 1 + the
  // epoch's parity; else 0. A worker, and a WaitAll that drives the caller pool, notify before they run an op of
  // another epoch, sleep or leave. All other threads notify at once.
  uint8_t drain_note = 0;
  bool keeps_drain_note = false;  // a WaitAll of this thread drives an op
};

// The slot that this thread used last, and the id of that slot's engine.
extern thread_local constinit uint64_t t_engine_id;
extern thread_local constinit ThreadSlot* t_slot;

// Where a body's launch goes instead of a stream: into a node of a graph.
struct NodeUpdate {
  DeviceGraphExec exec;
  DeviceGraphNode node;
  uint32_t launches = 0;
  DeviceStatus status = {};  // of the first that failed
};

// One frame for each op body on this thread's stack, innermost first. Waits look through them.
struct BodyFrame {
  EngineCore* core;
  OpRecord* op;
  BodyFrame* outer;
  Stream stream = {};            // the stream on which the body is captured; null: the stream of its lane
  NodeUpdate* update = nullptr;  // the body says what its node is to do, and issues nothing
  bool keeps_error = false;      // a KeptError lives as long as the body
  bool paused = false;           // an own run of this thread, which waits inside the op (LentRoles)
  bool over = false;             // no body: the closure of an op that is skipped, or has ended, is being destroyed
};
extern thread_local constinit BodyFrame* t_frame;
// KeptError: lives while the body of an op with a Completion runs. Once the Completion has been called, other ops may
// have the op's Vars, so what the body's RunContext::error() says is kept from the time before.
class KeptError {
 public:
  struct Content {
    const OpRecord* op = nullptr;
    ErrorRecord* error = nullptr;  // counted
  };
  explicit KeptError(const OpRecord* op) noexcept;  // null: the op has no Completion yet, and may call Defer
  ~KeptError();
  KeptError(const KeptError&) = delete;
  static void Set(const OpRecord* op) noexcept;  // the op on this thread becomes one with a Completion

 private:
  Content outer_;
};
extern thread_local constinit KeptError::Content t_kept_error;
// True while the body on this thread has lent the thread's role to a stand-in.
extern thread_local constinit bool t_role_lent;
// True while this thread runs a piece of a ParallelFor, for the op that t_frame names (PieceOfOp, engine.cc).
extern thread_local constinit bool t_in_piece;

inline void* ProductionEnv::Scratch(Pass& pass) { return pass.slot->scratch.data(); }
inline void* ProductionEnv::TakeGroupBlock(Pass& pass) { return pass.slot->cache.Get(kGroupClass); }
inline void ProductionEnv::DropGroupBlock(Pass& pass, void* group) { pass.slot->cache.Return(kGroupClass, group); }

}  // namespace engine::detail
