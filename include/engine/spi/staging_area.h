// StagingArea: where producers and consumers of a stage meet. It runs nothing; Stage and the Python front end bring the
// threads. Items are erased.
//
//   producer:  Begin -> make the item -> one of Put, Skip, End, Fail; over and over until Begin says kOver
//   consumer:  Take
//
// Threads:   every method on any thread; a ticket is settled on the thread that began it.
// Ownership: an item belongs to whoever holds the StageItem; the area drops what it discards outside its lock.
// Order:     items leave in the order of their tickets (ordered), else in the order in which they were put.
// Errors:    three ways to end, told apart: End (Take says kEnd, for ever), Fail (Take throws the error itself, as often as
//            asked) and Cancel (Take throws CancelledError); the first two come after the items before them.
//            After a fork the child's calls throw ForkedWhilePending: the producers stayed in the parent.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>

#include "engine/stage_options.h"

namespace engine {

namespace detail {
struct AreaState;
}

// StageItem: an owned pointer whose type was erased, and how many bytes it stands for.
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
  ~StagingArea();                              // nobody may be inside
  StagingArea(const StagingArea&) = delete;

  enum class Turn : uint8_t {
    kItem,   // make the item of `ticket`
    kSpawn,  // start one more producer, then call again
    kOver,   // no more items: this producer ends
    kBusy    // would have to wait (only with kNow)
  };
  // On a producer's thread, before its first item: what StageLane gives there from here on, and its name in traces.
  void Enter() const;
  // Waits while too much was begun already, while a pause after ignored errors lasts, and for a place in the pool.
  Turn Begin(uint64_t* ticket, Time until = kNever);
  // Hands the item over, always. True: go on. False: it waits for room, and so must the producer: AwaitRoom.
  bool Put(uint64_t ticket, StageItem item);
  // Returns when the item that Put left waiting has found room, was dropped, or is of no use any more.
  void AwaitRoom(uint64_t ticket);
  // Nothing came of it, because of an ignored exception; beyond ignored_budget in a row `error` is unexpected.
  void Skip(uint64_t ticket, std::exception_ptr error);
  // There is no more data. `exact`: what was begun later is discarded (the stream ends at this very item); otherwise
  // it is still delivered (the source is a set of independent calls).
  void End(uint64_t ticket, bool exact);
  void Fail(uint64_t ticket, std::exception_ptr error);
  // End, Skip or Fail, as the filters of the options say.
  void Settle(uint64_t ticket, std::exception_ptr error, bool exact);

  enum class Taken : uint8_t { kItem, kEnd, kTimeout };
  // kTimeout at `until`. take_timeout counts from `began`: for callers that cut a long wait into short ones.
  Taken Take(StageItem* item, Time until = kNever, Time began = kNow);

  // No more items are begun; what was begun is delivered, then the stream ends. Idempotent.
  void Close();
  // Everything ends now; what is buffered is thrown away. Idempotent.
  void Cancel();

  bool over() const;  // no producer is needed any more
  StageStats stats() const;
  const StageOptions& options() const;
  // "stage 'read' ": what its messages begin with.
  const std::string& label() const;

 private:
  std::unique_ptr<detail::AreaState> state_;
};

}  // namespace engine
