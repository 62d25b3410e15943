// StageBuffer: the state of a stage between two restarts, as a machine without threads: who may begin an item, what is
// buffered, which items wait for room, what a consumer gets, and how the stream ends.
//
// Threads:   none; StagingArea guards it with its lock.
// Ownership: the buffer owns an item from Put until Take. Discarded items lie in `trash`, and the owner of the buffer
//            destroys them.
// Order:     each item has a place. If `ordered`, the place is the ticket; otherwise items get places as they are put.
//            Items leave by place. The item of the lowest place (the head) is always let in, so that no order of
//            arrivals can block; the other items leave room for it.
// Errors:    the lowest place that ended or failed is the limit: nothing at or behind it is ever delivered. Begin may throw
//            bad_alloc, and has changed nothing then. It reserves what the item will need, so nothing else throws.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <limits>
#include <vector>

#include "engine/spi/staging_area.h"

namespace engine::detail {

class StageBuffer {
 public:
  using Time = StagingArea::Time;
  struct Limits {
    size_t capacity = 1;
    size_t capacity_bytes = 0;  // 0: no limit
    size_t threads = 1;         // producers; each may have one finished item beyond the capacity
    bool ordered = true;
    std::chrono::nanoseconds timeout{0};
  };
  // Reads the clock only if something waits.
  StageBuffer(Limits limits, StageClock& clock) : limits_(limits), clock_(clock) {}

  // --- producers
  enum class Begun : uint8_t { kItem, kLater, kOver };
  // kLater: capacity + threads items are under way; ask again when some have been taken.
  Begun Begin(uint64_t* ticket);
  enum class Put : uint8_t { kReady, kWaiting, kOver };
  // kWaiting: the item stays at `*place`, and enters when there is room. kOver: the item was discarded.
  Put PutItem(uint64_t ticket, StageItem item, uint64_t* place);
  void Skip(uint64_t ticket);
  void End(uint64_t ticket, bool exact);
  void Fail(uint64_t ticket, std::exception_ptr error);
  // No item can be begun any more. An ordered stream delivers those that were begun first.
  void FailNext(std::exception_ptr error);

  bool Waits(uint64_t place) const;
  // When the item that waits at `place` has waited too long, if nothing happens before. The time-out counts from the
  // latest of three moments: when the item was finished, when the head could be taken, and the last take.
  Time RoomDeadline(uint64_t place);
  bool Expired(uint64_t place);
  void DropWaiting(uint64_t place);
  void FailWaiting(uint64_t place, std::exception_ptr error);

  // --- consumers
  enum class Take : uint8_t { kItem, kEmpty, kEnd, kFailed, kCancelled };
  Take TakeItem(StageItem* item);
  bool CanTake() const;  // whether TakeItem would not return kEmpty
  const std::exception_ptr& error() const { return error_; }

  void Close() { Stop(); }
  void Cancel();
  void Grow(size_t capacity, size_t threads);

  bool stopped() const { return stopped_; }
  bool cancelled() const { return cancelled_; }
  bool HasPlace() const { return making_ + waiting_.size() + ready_ < limits_.capacity + limits_.threads; }
  const Limits& limits() const { return limits_; }
  uint64_t begun() const { return begun_; }
  uint64_t delivered() const { return delivered_; }
  uint64_t position() const { return position_; }
  size_t ready() const { return ready_; }
  size_t ready_bytes() const { return bytes_; }
  size_t waiting() const { return waiting_.size(); }
  size_t making() const { return making_; }
  uint64_t drops() const { return drops_; }
  uint64_t skipped() const { return skipped_; }
  uint64_t discarded() const { return discarded_; }

  // Places of items that have stopped waiting, so that their producers may go on.
  std::vector<uint64_t> released;
  // Items that nobody will get. Their destructors are user code, so the owner calls them outside its lock.
  std::vector<StageItem> trash;

 private:
  enum class State : uint8_t {
    kMaking,   // -> kWaiting, kReady, gone
    kWaiting,  // -> kReady, gone
    kReady     // -> gone: taken, or thrown away
  };
  struct Slot {
    StageItem item;
    Time since{};  // kWaiting: when the item was finished
    uint64_t ticket = 0;
    uint64_t place = 0;
    State state = State::kMaking;
  };
  static constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();

  void Reserve();
  Slot& Append(uint64_t ticket, uint64_t place);
  size_t IndexOf(uint64_t place) const;
  Slot& At(uint64_t place) { return slots_[IndexOf(place)]; }
  void Erase(uint64_t place) { slots_.erase(slots_.begin() + static_cast<ptrdiff_t>(IndexOf(place))); }
  bool HeadIsReady() const { return !slots_.empty() && slots_.front().state == State::kReady; }
  // Nothing is left to deliver and nothing more comes: consumers see the end, or the failure.
  bool Ended() const { return slots_.empty() && (limit_ != kNone || (stopped_ && making_ == 0)); }
  bool HasRoom(const Slot& slot) const;
  void Enter(Slot& slot);
  void Discard(StageItem item);
  void LeaveWaiting(uint64_t place);
  void Stop() { stopped_ = true; }
  void LimitTo(uint64_t place, std::exception_ptr error);
  void LetIn();
  void Done(uint64_t ticket);

  Limits limits_;
  StageClock& clock_;
  // By place. Ordered: every item that was begun and not settled, so that the front is the next one to deliver, or the
  // one for which delivery waits. Otherwise: the items that were put and not taken.
  std::deque<Slot> slots_;
  uint64_t places_ = 0;            // unordered: how many places were given out
  uint64_t limit_ = kNone;         // the stream ends before this place
  std::exception_ptr error_;       // why the stream failed, if it did
  std::vector<uint64_t> waiting_;  // places; few, at most one for each producer
  Time progress_{};                // the last take, or the last time that the head could be taken, while items wait
  uint64_t begun_ = 0, delivered_ = 0, position_ = 0;
  std::deque<uint64_t> open_;  // unordered: tickets that are not done with, in their order
  size_t ready_ = 0, bytes_ = 0, making_ = 0;
  uint64_t drops_ = 0, skipped_ = 0, discarded_ = 0;
  bool stopped_ = false, cancelled_ = false;
};

}  // namespace engine::detail
