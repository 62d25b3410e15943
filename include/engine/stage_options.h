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
#include "engine/testing/stage_clock.h"

namespace engine {

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

struct StageOptions {
  std::string name = {};      // for errors and thread names; empty: generated
  size_t capacity = 1;        // how many items may be buffered
  size_t capacity_bytes = 0;  // how many bytes (as the source reports), but the item whose turn it is enters; 0: any
  int num_threads = 1;        // producer threads
  int num_clients = 1;        // consumers that may wait at once; each item goes to one of them
  bool ordered = true;        // items keep the source's order; false: they come in the order in which they are finished

  std::chrono::milliseconds timeout{300000};  // the longest time that a finished item waits for room while nobody takes
  OnTimeout on_timeout = OnTimeout::kError;
  std::chrono::milliseconds take_timeout{0};  // the longest time that a consumer waits for an item; 0: no limit

  ExceptionFilter closed_exception_types = AnyOf<EndOfData>();  // these end the stream, after the items made before
  ExceptionFilter ignored_exception_types = AnyOf<>();          // these skip the item and count it
  int ignored_budget = 100;  // ignored in a row; one more is unexpected. After the 8th: a growing pause (1 ms … 1 s)

  StagePool pool = {};               // its producers need a place in this pool to run; none: all may run at once
  int stage_subgraph_stream_id = 0;  // device lane of the stage, 0 … StageLanes() - 1; 0: the main one
  Engine* engine = nullptr;          // the engine whose device that is; it outlives the stage. Null: no device
  int device = 0;                    // number of the device in that engine

  bool autotune = false;      // grow capacity and threads while consumers wait
  size_t max_capacity = 256;  // autotune goes no further; capacity_bytes bounds it too
  int max_threads = 0;        // autotune goes no further; 0: one a core

  StageClock* clock = nullptr;  // for time-outs, pauses and waits; null: the steady clock

  std::shared_ptr<StageHost> host = {};  // a front end's threads (spi/stage_host.h); null: the stage makes its own
};

// A snapshot of the counters. They start at zero with each (re)start of the stage.
struct StageStats {
  uint64_t delivered = 0;   // items handed to consumers
  uint64_t position = 0;    // items of the source that are done with; a run that resumes leaves out this many
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
