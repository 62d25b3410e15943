// BuildTrace: makes a trace of what the threads recorded. Pure, but that it interns names.
//
// The order of ops is found, not recorded: ops that exclude each other on a Var never overlap, so the order in which they
// began is the order in which they were pushed.
#pragma once

#include "core/wait_log.h"
#include "sched/trace_recorder.h"

namespace engine::detail {

// `start`: when the trace began.
Trace BuildTrace(TraceRecords recorded, const std::vector<LoggedWait>& waits,
                 std::chrono::steady_clock::time_point start);

// The name of the unnamed thread `number`, counted from 0: "caller", "caller 2", "caller 3".
const char* UnnamedThread(size_t number);

}  // namespace engine::detail
