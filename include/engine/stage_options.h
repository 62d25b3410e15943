// StageOptions: how a stage works, what it counts, and which exceptions end it.
//
// Names and defaults are DeepRec's (tf.staged), except that an item which finds no room in time is an error unless
// `on_timeout` says otherwise. Options that cannot be honoured are refused with UsageError when the stage is made.
//
// Threads: plain values. Errors: see the classes below.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/error.h"
#include "engine/op.h"
#include "engine/options.h"

namespace engine {

class StageClock;
class StageHost;

// True for the exceptions that the filter covers. If it throws, its stage fails with what it threw.
using ExceptionFilter = std::function<bool(const std::exception_ptr&)>;
namespace detail {
template <class... E>
struct IsAnyOf {
  bool operator()([[maybe_unused]] const std::exception_ptr& thrown) const { return (Is<E>(thrown) || ...); }
  template <class T>
  static bool Is(const std::exception_ptr& thrown) {
    try {
      std::rethrow_exception(thrown);
    } catch (const T&) {
      return true;
    } catch (...) {
      return false;
    }
  }
};
}  // namespace detail
template <class... E>
ExceptionFilter AnyOf() {
  return detail::IsAnyOf<E...>();
}

enum class OnTimeout : uint8_t {
  kError,  // the stream fails with StageTimeoutError, after the items before it
  kDrop,   // the item is dropped and counted (DeepRec)
};

// A named pool for stages. At most inter_op_threads_num producers of all the pool's stages run at once; a producer that
// waits for room, or takes from another stage, does not count. ParallelFor in their sources uses intra_op_threads_num
// threads.
struct StagePoolOptions {
  std::string global_name;
  int inter_op_threads_num = 1;
  int intra_op_threads_num = 1;
};
// A handle of a pool that MakeStagePool has made; a default-made one names no pool.
class StagePool {
 public:
  StagePool() noexcept = default;
  // For languages that know pools by number: 0, 1, … in the order in which they were made (DeepRec's
  // stage_subgraph_thread_pool_id). UsageError, which lists the pools, if there is none of that number.
  static StagePool Number(int number);
  explicit operator bool() const noexcept { return number_ >= 0; }
  int number() const noexcept { return number_; }
  friend bool operator==(StagePool, StagePool) noexcept = default;

 private:
  friend StagePool MakeStagePool(StagePoolOptions options);
  explicit StagePool(int number) noexcept : number_(number) {}
  int number_ = -1;
};

// The options, a row each: kind, name, default, what is allowed, the default as docs/stages.md says it, what it is. From these
// rows come StageOptions, its checks (src/stage/options.cc) and, written out by .ci/tables.py, the ranges that Python checks
// and the table in docs/stages.md.
// clang-format off
#define ENGINE_STAGE_OPTIONS(X)                                                                                             \
  X(Text, name, , Any(), "generated", "appears in errors, in traces, and in the names of the threads")                      \
  X(Size, capacity, 1, Range(1, 1073741824), "1", "how many items the stage buffers")                                       \
  X(Size, capacity_bytes, 0, AtLeast(0), "0, any",                                                                          \
    "how many bytes it buffers, as the source reports them; the item whose turn it is always enters, so that no "           \
    "item is too large")                                                                                                    \
  X(Int, num_threads, 1, Range(1, 1024), "1",                                                                               \
    "producers; each may have one more finished item in hand: at most ``capacity + num_threads`` items are read "           \
    "ahead")                                                                                                                \
  X(Int, num_clients, 1, Range(1, 1048576), "1",                                                                            \
    "consumers that may wait at once; one more is refused. Each item goes to one of them, and all see the end. In "         \
    "Python ``num_client`` is allowed, too (DeepRec)")                                                                      \
  X(Bool, ordered, true, Any(), "True",                                                                                     \
    "items leave in the source's order. False: in the order in which they are finished")                                    \
  X(Millis, timeout, 300000, Range(0, 315360000000), "300 s; in Python None, never",                                        \
    "the longest time that a finished item waits for room while no item is taken; 0: at once. A loop that pauses "          \
    "for an evaluation or in a debugger is no error, so in Python nothing happens unless a time is given")                  \
  X(OnTimeout, on_timeout, OnTimeout::kError, Any(), "``\"error\"``",                                                       \
    "what happens then. ``\"error\"``: the stream fails with ``StageTimeoutError``, after the items before. "               \
    "``\"drop\"``: the item is dropped and counted (DeepRec)")                                                              \
  X(Millis, take_timeout, 0, Range(0, 315360000000), "none; in C++ 0",                                                      \
    "the longest time that a consumer waits for an item. Then ``StageTimeoutError`` says where the stage hangs; the"        \
    " stage goes on")                                                                                                       \
  X(Filter, closed_exception_types, AnyOf<EndOfData>(), Any(), "``StopIteration`` and ``EndOfData``; in C++ ``EndOfData``", \
    "exceptions of the source that end the stream, after the items before")                                                 \
  X(Filter, ignored_exception_types, AnyOf<>(), Any(), "none",                                                              \
    "exceptions of the source that skip the item; skipped items are counted")                                               \
  X(Int, ignored_budget, 100, Range(0, 1073741824), "100",                                                                  \
    "how many errors in a row are ignored; the next one is unexpected. From the ninth on, the stage pauses after "          \
    "each: 1 ms, doubling up to 1 s. An item resets the count")                                                             \
  X(Pool, pool, , Any(), "none",                                                                                            \
    "the pool, made by ``MakeStagePool``, in which producers need a seat to run. In Python "                                \
    "``use_stage_subgraph_thread_pool=True`` and the pool's number, ``stage_subgraph_thread_pool_id``; one that "           \
    "does not exist is refused")                                                                                            \
  X(Int, stage_subgraph_stream_id, 0, Any(), "0, the main lane",                                                            \
    "the device lane of the stage. What the source pushes to a device goes to ``engine.data.stage_lane()`` (C++ "           \
    "``StageLane()``). Without a device, only 0 is allowed")                                                                \
  X(EnginePointer, engine, nullptr, Any(), "the default engine; in C++ none",                                               \
    "the engine that has the device; it outlives the stage")                                                                \
  X(Int, device, 0, Any(), "0", "C++: the number of the device in that engine")                                             \
  X(Bool, autotune, false, Any(), "False",                                                                                  \
    "let capacity and threads grow while consumers wait, within ``capacity_bytes``")                                        \
  X(Size, max_capacity, 256, AtLeast(0), "256", "autotune goes no further")                                                 \
  X(Int, max_threads, 0, AtLeast(0), "0, one a core that the program may use, by affinity and quota", "autotune goes no further")                                    \
  X(ClockPointer, clock, nullptr, Any(), "the steady clock",                                                                \
    "C++: measures time-outs, pauses and waits; a test may turn a clock by hand (``engine/testing/stage_clock.h``)")        \
  X(Host, host, , Any(), "none",                                                                                            \
    "C++: a front end's threads (``engine/spi/stage_host.h``); without one the stage makes its own")
// clang-format on

// The kinds of these options beside those of an engine's (engine/options.h).
namespace stage_option {
using namespace option;
using Bool = bool;
using OnTimeout = ::engine::OnTimeout;
using Filter = ExceptionFilter;
using Pool = StagePool;
using EnginePointer = Engine*;
using ClockPointer = StageClock*;
using Host = std::shared_ptr<StageHost>;
}  // namespace stage_option

struct StageOptions {
#define ENGINE_STAGE_OPTION_FIELD(kind, name, initial, ...) stage_option::kind name{initial};
  ENGINE_STAGE_OPTIONS(ENGINE_STAGE_OPTION_FIELD)
#undef ENGINE_STAGE_OPTION_FIELD
};

// A snapshot of the counters. They start at zero with each (re)start of the stage.
struct StageStats {
  uint64_t delivered = 0;   // items handed to consumers
  uint64_t position = 0;    // items of the source that are done with; a program that resumes leaves out this many
  uint64_t begun = 0;       // items that producers have begun
  size_t fill = 0;          // items buffered now
  size_t fill_bytes = 0;    // their bytes
  size_t waiting = 0;       // finished items that wait for room now, each with its producer
  size_t capacity = 0;      // with what autotune added
  int threads = 0;          // with what autotune added
  uint64_t drops = 0;       // items dropped after timeout
  uint64_t skipped = 0;     // items skipped because of an ignored exception
  uint64_t discarded = 0;   // items finished behind the end, a failure or a cancel, and thrown away
  uint64_t room_waits = 0;  // times that a finished item found no room
  std::chrono::nanoseconds producer_wait{0};  // time spent in those waits, summed over producers
  std::chrono::nanoseconds consumer_wait{0};  // spent waiting for items, summed over consumers
};

// Makes a pool for the life of the process. Throws UsageError if the name is taken.
StagePool MakeStagePool(StagePoolOptions options);
// All pools, by number.
std::vector<StagePoolOptions> StagePools();
// How many device lanes a stage may choose from (multi_stream_num). 1 if there is no device.
int StageLanes(const Engine* engine = nullptr, int device = 0) noexcept;
// Inside a source: where the stage's device work goes; copies to the device go to CopyIn. Elsewhere: Cpu().
Placement StageLane() noexcept;

// Runs body(begin, end) over [0, n) in pieces of at least `grain`, on the intra-op threads of the pool of the calling
// producer's stage; without a pool, on the calling thread alone. Rethrows the first exception of a piece.
void StageParallelFor(size_t n, size_t grain, const std::function<void(size_t, size_t)>& body);

}  // namespace engine
