// Counters of an engine and of its devices, since the engine was made. They are summed over threads, so a snapshot does
// not show one instant.
//
// Threads: plain values.
#pragma once

#include <cstdint>

// The counters, a row each: name, what it counts. From these rows come the structs below, those of the C API
// (EngineCounters, EngineDeviceCounters), Python's stats() and device_stats() and, written out by .ci/tables.py, the
// tables in docs/reference.md. A new counter is a row at the end here and a field at the end of the struct in c_api/engine.h;
// without that field the C API does not compile.
// clang-format off
#define ENGINE_COUNTERS(X)                                                                                             \
  X(pushed, "ops accepted, without internal ones (waits, deletions)")                                                  \
  X(completed, "ops settled: they ran, failed, were skipped or were cancelled")                                        \
  X(skipped, "ops settled without a run, because of an error or a cancel")                                             \
  X(inlined, "ops run straight after the op that released them, without a queue")                                      \
  X(stolen, "ops that a worker took from another worker")                                                              \
  X(wakeups, "times that a sleeping worker was woken")                                                                 \
  X(sleeps, "times that a worker went to sleep")                                                                       \
  X(spare_threads, "threads alive that stand in for workers whose op waits")                                           \
  X(slab_bytes, "memory taken for ops, groups and Vars, in bytes; it is given back when the engine goes")              \
  X(slab_allocations, "times that such memory was taken from the system")                                              \
  X(unseen_errors, "errors that no wait has shown yet")                                                                \
  X(backpressure_waits, "pushes that waited at the soft bound on pending ops")                                         \
  X(dispatches, "dispatches: a bulk is one, unless it was split; any other op is one")

// Calls that the engine itself made to its devices. Bodies make more.
#define ENGINE_DEVICE_COUNTERS(X)                                                                                      \
  X(issued, "ops whose order is on a device, and whose Vars have been released")                                       \
  X(retired, "issued ops that are known to have ended")                                                                \
  X(records, "events recorded")                                                                                        \
  X(waits, "waits of one stream for another")                                                                          \
  X(waits_elided, "waits left out, because the stream is behind that work already")                                    \
  X(events, "events made; they are used again")                                                                        \
  X(queries, "events asked whether they have come")                                                                    \
  X(host_waits, "times that a host op or a wait was put aside until a device got there")                               \
  X(host_syncs, "times that a thread waited for a device because memory ran out; it does so nowhere else")             \
  X(lanes, "streams made, each with what belongs to it")                                                               \
  X(graph_captures, "graphs captured from bulks, see GraphKey")                                                        \
  X(graph_instantiations, "graphs made ready to be launched")                                                          \
  X(graph_updates, "nodes, or whole executables, that got new parameters")                                             \
  X(graph_launches, "graphs launched")
// clang-format on

namespace engine {

#define ENGINE_COUNTER_FIELD(name, what) uint64_t name = 0;
struct EngineStats {
  ENGINE_COUNTERS(ENGINE_COUNTER_FIELD)
};
struct DeviceStats {
  ENGINE_DEVICE_COUNTERS(ENGINE_COUNTER_FIELD)
};
#undef ENGINE_COUNTER_FIELD

}  // namespace engine
