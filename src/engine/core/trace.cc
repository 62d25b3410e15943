// Tracing: starts and stops it, and adds records to the rings of the threads (trace_recorder.h).
#include <new>
#include <utility>

#include "core/core.h"
#include "core/trace_build.h"
#include "core/traced_body.h"
#include "core/wait_log.h"

namespace engine::detail {
namespace {

// The Vars whose order the op keeps, its owner's among them.
void AddVars(OpRecord* op, std::vector<TraceTouch>& touches) {
  ForOrderedVars(op, [&](VarCore* var, AccessMode mode) {
    touches.push_back({var->pusher.name, reinterpret_cast<uint64_t>(var), mode});
  });
}

}  // namespace

TraceRecord NewTraceRecord(TraceKind kind) noexcept {
  TraceRecord record;
  record.kind = kind;
  record.thread = ThreadName();
  record.thread_number = ThreadNumber();
  return record;
}

void EngineCore::StartTrace() {
  MutexLock lock(trace_mu_);
  EndTrace();
  trace_start_.store(Clock::now(), std::memory_order_relaxed);
  WaitLog::Begin();
  tracing_.store(true, std::memory_order_release);
  gate_.Watch(true);
}

Trace EngineCore::StopTrace() {
  MutexLock lock(trace_mu_);
  return EndTrace();
}

Trace EngineCore::EndTrace() {
  gate_.Watch(false);
  const bool was_on = tracing_.exchange(false, std::memory_order_relaxed);
  TraceRecords recorded;
  slots_.ForEach([&](ThreadSlot& slot) { slot.trace.MoveTo(recorded); });
  if (!was_on) return {};
  const auto start = trace_start_.load(std::memory_order_relaxed);
  Trace trace = BuildTrace(std::move(recorded), WaitLog::End(start), start);
  trace.length_ns = NanosSince(start, Clock::now());
  pools_.ForEach([&](class Pool& pool) {
    for (const auto& worker : pool.workers()) trace.threads.emplace_back(worker->name.c_str());
  });
  return trace;
}

// A record for which there is no memory is left out, here and below, so that tracing changes no result.
void EngineCore::AddTrace(TraceRecord record, Clock::time_point begin, const std::vector<TraceTouch>& touches) noexcept
    try {
  const auto start = trace_start_.load(std::memory_order_relaxed);
  record.begin_ns = NanosSince(start, begin);
  record.end_ns = record.kind == TraceKind::kRan ? NanosSince(start, Clock::now()) : record.begin_ns;
  Slot().trace.Add(record, touches);
} catch (const std::bad_alloc&) {
}

// Called inside the gate, before the op is registered.
void EngineCore::TracePush(OpRecord* op) noexcept try {
  const OpKindId kind = op->extra.kind;
  if (kind != OpKindId::kPlain && kind != OpKindId::kRun && kind != OpKindId::kDelete) return;
  TraceRecord record = NewTraceRecord(kind == OpKindId::kDelete ? TraceKind::kDeleted : TraceKind::kPushed);
  record.name = op->extra.name;
  record.op = kind == OpKindId::kDelete ? static_cast<const void*>(op->accesses()[0].var) : op;
  std::vector<TraceTouch> touches;
  if (kind == OpKindId::kRun) AddVars(op, touches);
  AddTrace(record, Clock::now(), touches);
} catch (const std::bad_alloc&) {
}

void EngineCore::TraceSettled(const OpRecord* op) noexcept {
  TraceRecord record = NewTraceRecord(TraceKind::kSettled);
  record.op = op;
  AddTrace(record, Clock::now(), {});
}

struct TracedBody::State {
  EngineCore& core;
  TraceRecord record = {};
  std::vector<TraceTouch> touches = {};
  bool begun = false;
  const char* outer_name = nullptr;
  State* outer = nullptr;
  Clock::time_point begin = {};
};
thread_local constinit TracedBody::State* TracedBody::running_ = nullptr;

void TracedBody::Open(EngineCore& core) noexcept { state_ = new (std::nothrow) State{core}; }

void TracedBody::Close() noexcept {
  Finish();
  delete state_;
}

void TracedBody::About(OpRecord* op) noexcept try {
  const auto owner = KindOf(op).owner;
  About(op, owner ? owner(op) : nullptr, op->extra.name, op->site());
  AddVars(op, state_->touches);
} catch (const std::bad_alloc&) {
}

void TracedBody::About(const void* key, const void* run, const char* name, Site site) noexcept {
  TraceRecord& record = state_->record;
  record.op = key;
  record.run = run;
  record.name = name;
  record.file = site.file;
  record.line = site.line;
}

void TracedBody::Touch(const char* name, uint64_t key, AccessMode mode) noexcept try {
  state_->touches.push_back({name, key, mode});
} catch (const std::bad_alloc&) {
}

void TracedBody::Start(const char* thread) noexcept {
  state_->outer_name = t_name_in_body;
  if (thread) t_name_in_body = thread;
  state_->outer = std::exchange(running_, state_);
  state_->begun = true;
  state_->begin = Clock::now();
}

void TracedBody::Finish() noexcept {
  if (state_->begun) Add(*state_);
}

void TracedBody::EndBefore(const OpRecord* op) noexcept {
  if (running_ && running_->record.op == op) Add(*running_);
}

void TracedBody::Add(State& state) noexcept {
  state.begun = false;
  running_ = state.outer;
  state.record.thread = ThreadName();
  state.record.thread_number = ThreadNumber();
  t_name_in_body = state.outer_name;
  state.core.AddTrace(state.record, state.begin, state.touches);
}

void TracedBody::Skip(const char* thread) noexcept {
  if (!state_) return;
  state_->record.kind = TraceKind::kSkipped;
  Start(thread);
  Finish();
}

}  // namespace engine::detail
