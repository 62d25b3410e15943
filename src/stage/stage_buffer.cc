#include "stage_buffer.h"

#include <algorithm>
#include <new>
#include <utility>

namespace engine::detail {

// For one more item: an item is in one of these at a time, and trash is what nobody will get.
void StageBuffer::Reserve() {
  const auto hold = [](auto& list, size_t count) {
    if (list.capacity() < count) list.reserve(std::max(count, 2 * list.capacity()));
  };
  const size_t in_hand = making_ + waiting_.size() + 1;
  hold(waiting_, in_hand);
  hold(released, in_hand);
  hold(trash, trash.size() + in_hand + ready_);
}

StageBuffer::Slot& StageBuffer::Append(uint64_t ticket, uint64_t place) {
  Slot& slot = slots_.emplace_back();
  slot.ticket = ticket;
  slot.place = place;
  return slot;
}

size_t StageBuffer::IndexOf(uint64_t place) const {
  const uint64_t guess = place - slots_.front().place;  // right, unless a place in between is gone
  if (guess < slots_.size() && slots_[guess].place == place) return guess;
  const auto found = std::lower_bound(slots_.begin(), slots_.end(), place,
                                      [](const Slot& slot, uint64_t wanted) { return slot.place < wanted; });
  return static_cast<size_t>(found - slots_.begin());
}

StageBuffer::Begun StageBuffer::Begin(uint64_t* ticket) {
  if (stopped_) return Begun::kOver;
  if (!HasPlace()) return Begun::kLater;
  Reserve();
  if (limits_.ordered) {
    Append(begun_, begun_);
  } else {
    open_.push_back(begun_);
  }
  *ticket = begun_++;
  ++making_;
  return Begun::kItem;
}

bool StageBuffer::HasRoom(const Slot& slot) const {
  if (&slot == &slots_.front()) return true;
  const size_t kept_free = HeadIsReady() ? 0 : 1;
  if (ready_ + kept_free >= limits_.capacity) return false;
  return limits_.capacity_bytes == 0 || bytes_ + slot.item.bytes() <= limits_.capacity_bytes;
}

void StageBuffer::Enter(Slot& slot) {
  slot.state = State::kReady;
  ++ready_;
  bytes_ += slot.item.bytes();
}

void StageBuffer::Discard(StageItem item) {
  ++discarded_;
  trash.push_back(std::move(item));
}

StageBuffer::Put StageBuffer::PutItem(uint64_t ticket, StageItem item, uint64_t* place) {
  --making_;
  *place = limits_.ordered ? ticket : places_;
  if (cancelled_ || *place >= limit_) {
    Discard(std::move(item));
    return Put::kOver;
  }
  if (!limits_.ordered) {
    try {
      Append(ticket, places_);
    } catch (const std::bad_alloc&) {
      Stop();
      LimitTo(places_, std::current_exception());
      Discard(std::move(item));
      return Put::kOver;
    }
    ++places_;
  }
  Slot& slot = limits_.ordered ? At(ticket) : slots_.back();
  slot.item = std::move(item);
  if (HasRoom(slot)) {
    Enter(slot);
    if (!waiting_.empty() && &slot == &slots_.front()) progress_ = clock_.Now();
    return Put::kReady;
  }
  slot.state = State::kWaiting;
  slot.since = clock_.Now();
  waiting_.push_back(*place);
  return Put::kWaiting;
}

void StageBuffer::Skip(uint64_t ticket) {
  --making_;
  if (cancelled_ || (limits_.ordered && ticket >= limit_)) {
    ++discarded_;
    return;
  }
  ++skipped_;
  if (limits_.ordered) {
    Erase(ticket);
    LetIn();
  } else {
    Done(ticket);
  }
}

void StageBuffer::End(uint64_t ticket, bool exact) {
  --making_;
  Stop();
  if (!limits_.ordered || cancelled_ || ticket >= limit_) return;
  if (exact) {
    LimitTo(ticket, nullptr);
  } else {
    Erase(ticket);
    LetIn();
  }
}

void StageBuffer::Fail(uint64_t ticket, std::exception_ptr error) {
  --making_;
  Stop();
  LimitTo(limits_.ordered ? ticket : places_, std::move(error));
}

void StageBuffer::FailNext(std::exception_ptr error) {
  Stop();
  LimitTo(limits_.ordered ? begun_ : places_, std::move(error));
}

void StageBuffer::LimitTo(uint64_t place, std::exception_ptr error) {
  if (cancelled_ || place >= limit_) return;
  limit_ = place;
  error_ = std::move(error);
  while (!slots_.empty() && slots_.back().place >= place) {
    Slot& slot = slots_.back();
    if (slot.state == State::kReady) --ready_, bytes_ -= slot.item.bytes();
    if (slot.state == State::kWaiting) LeaveWaiting(slot.place);
    if (slot.state != State::kMaking) Discard(std::move(slot.item));  // its producer will be told otherwise
    slots_.pop_back();
  }
}

bool StageBuffer::Waits(uint64_t place) const {
  return std::find(waiting_.begin(), waiting_.end(), place) != waiting_.end();
}

void StageBuffer::LeaveWaiting(uint64_t place) {
  std::erase(waiting_, place);
  released.push_back(place);
}

StageBuffer::Time StageBuffer::RoomDeadline(uint64_t place) {
  if (!Waits(place)) return Time::max();
  const Time from = HeadIsReady() ? std::max(At(place).since, progress_) : clock_.Now();
  return from + limits_.timeout;
}

bool StageBuffer::Expired(uint64_t place) {
  return Waits(place) && HeadIsReady() && RoomDeadline(place) <= clock_.Now();
}

void StageBuffer::DropWaiting(uint64_t place) {
  Slot& slot = At(place);
  LeaveWaiting(place);
  ++drops_;
  trash.push_back(std::move(slot.item));
  if (!limits_.ordered) Done(slot.ticket);
  Erase(place);
  LetIn();
}

void StageBuffer::FailWaiting(uint64_t place, std::exception_ptr error) {
  Stop();
  LimitTo(place, std::move(error));
}

bool StageBuffer::CanTake() const { return cancelled_ || HeadIsReady() || Ended(); }

StageBuffer::Take StageBuffer::TakeItem(StageItem* item) {
  if (cancelled_) return Take::kCancelled;
  if (Ended()) return error_ ? Take::kFailed : Take::kEnd;
  if (!HeadIsReady()) return Take::kEmpty;
  Slot& slot = slots_.front();
  *item = std::move(slot.item);
  --ready_;
  bytes_ -= item->bytes();
  ++delivered_;
  if (limits_.ordered) {
    position_ = slot.ticket + 1;
  } else {
    Done(slot.ticket);
  }
  slots_.pop_front();
  if (!waiting_.empty()) {
    progress_ = clock_.Now();
    LetIn();
  }
  return Take::kItem;
}

// Lets in the items that have room now.
void StageBuffer::LetIn() {
  while (!waiting_.empty()) {
    Slot& slot = At(*std::min_element(waiting_.begin(), waiting_.end()));
    if (!HasRoom(slot)) break;
    Enter(slot);
    LeaveWaiting(slot.place);
  }
}

void StageBuffer::Done(uint64_t ticket) {
  open_.erase(std::lower_bound(open_.begin(), open_.end(), ticket));
  position_ = open_.empty() ? begun_ : open_.front();
}

void StageBuffer::Cancel() {
  if (Ended()) return;  // a consumer may have seen the end already, and all see the same
  Stop();
  LimitTo(0, nullptr);
  cancelled_ = true;
}

void StageBuffer::Grow(size_t capacity, size_t threads) {
  limits_.capacity = capacity;
  limits_.threads = threads;
  LetIn();
}

}  // namespace engine::detail
