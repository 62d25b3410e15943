// StagingArea: where the producers and the consumers of a stage meet. It runs nothing: Stage, or the Python front end,
// has the threads. The types of the items are erased.
//
//   producer:  Begin -> make the item -> one of Put, Skip, End, Fail; again and again until Begin returns kOver
//   consumer:  Take
//
// A *ticket* is the number of an item that a producer has begun, from 0 on.
//
// Threads:   every method may be called on any thread; a ticket is settled on the thread that began it.
// Ownership: an item belongs to whoever holds the StageItem. The area destroys discarded items outside its lock.
// Order:     items leave in the order of their tickets if `ordered` is true, else in the order in which they were put.
// Errors:    a stream ends in one of three ways. End: Take returns kEnd from then on. Fail: every Take throws the error
//            itself. Cancel: Take throws CancelledError. End and Fail take effect after the items before them. After a
//            fork the child's calls throw ForkedWhilePending, because the producers stayed in the parent.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>

#include "engine/stage_options.h"
#include "engine/testing/stage_clock.h"

namespace engine {

namespace detail {
struct AreaState;
}

// StageItem: owns an object whose type was erased, and says how many bytes it counts for.
class StageItem {
 public:
  using Drop = void (*)(void*) noexcept;
  StageItem() noexcept = default;
  StageItem(void* data, Drop drop, size_t bytes = 0) noexcept : data_(data), drop_(drop), bytes_(bytes) {}
  StageItem(StageItem&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), drop_(other.drop_), bytes_(other.bytes_) {}
  StageItem& operator=(StageItem&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(drop_, other.drop_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~StageItem() {
    if (data_) drop_(data_);
  }
  void* data() const noexcept { return data_; }
  size_t bytes() const noexcept { return bytes_; }
  void* Release() noexcept { return std::exchange(data_, nullptr); }

 private:
  void* data_ = nullptr;
  Drop drop_ = nullptr;
  size_t bytes_ = 0;
};

class StagingArea {
 public:
  using Time = StageClock::Time;
  static constexpr Time kNow = Time::min();    // do not wait
  static constexpr Time kNever = Time::max();  // wait as long as it takes

  explicit StagingArea(StageOptions options);  // throws UsageError
  ~StagingArea();                              // no thread may be inside a method
  StagingArea(const StagingArea&) = delete;

  enum class Turn : uint8_t {
    kItem,   // make the item for `ticket`
    kSpawn,  // start one more producer, then call again
    kOver,   // there are no more items: this producer ends
    kBusy    // the call would have to wait (only with kNow)
  };
  // A producer calls it on its own thread before its first item. It sets what StageLane returns there, and the thread's
  // name in traces.
  void Enter() const;
  // Waits while too many items have been begun, during a pause after ignored errors, and for a seat in the pool. What
  // needs memory is done here: if bad_alloc comes out, there is no item, and nothing has changed.
  Turn Begin(uint64_t* ticket, Time until = kNever);
  // Called when the producer of kSpawn, or one of the first num_threads, could not be started.
  void SpawnRefused();
  // Hands the item over. True: the producer may go on. False: the item waits for room, and the producer must call
  // AwaitRoom.
  bool Put(uint64_t ticket, StageItem item);
  // Returns when the item for which Put returned false has found room, was dropped, or is no longer needed.
  void AwaitRoom(uint64_t ticket);
  // There is no item, because of an ignored exception. If more than ignored_budget come in a row, `error` counts as
  // unexpected.
  void Skip(uint64_t ticket, std::exception_ptr error);
  // There is no more data. `exact` true: items that were begun later are discarded, because the stream ends at this
  // very ticket. False: they are still delivered, because the source is a set of independent calls.
  void End(uint64_t ticket, bool exact);
  void Fail(uint64_t ticket, std::exception_ptr error);
  // A producer has failed without an item in its hands. An ordered stream delivers what was begun first.
  void Fail(std::exception_ptr error);
  // Calls End, Skip or Fail, as the exception types of the options say. If one of these filters throws, the stream fails
  // with what it threw.
  void Settle(uint64_t ticket, std::exception_ptr error, bool exact);

  enum class Taken : uint8_t { kItem, kEnd, kTimeout };
  // Returns kTimeout at `until`. take_timeout is counted from `began`, for callers that cut a long wait into short
  // ones.
  Taken Take(StageItem* item, Time until = kNever, Time began = kNow);

  // Producers begin no more items. Those that were begun are delivered, then the stream ends. A second call does
  // nothing.
  void Close();
  // Ends everything now, and drops what is buffered. A second call does nothing.
  void Cancel();

  StageStats stats() const;
  const StageOptions& options() const;
  // How the area's messages begin: "stage 'read' ".
  const std::string& label() const;

 private:
  std::unique_ptr<detail::AreaState> state_;
};

}  // namespace engine
