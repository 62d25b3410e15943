// LaneRecords: the events recorded on a lane and not known to be reached, by the number that each covers.
//
// A ring that grows to the most that ever stood in it, so that recording allocates nothing afterwards. Grow makes room; PushBack
// and Extend need no memory.
//
// Threads:   none of its own; the lane's mu. Order: numbers ascend. Errors: none.
#pragma once

#include <algorithm>
#include <array>
#include <ranges>
#include <vector>

#include "device/order_point.h"
#include "engine/device/device.h"

namespace engine::detail {

using LaneClock = std::array<uint64_t, kMaxLanes>;  // by lane: the number up to which its work is in front of ours

struct LaneRecord {
  uint64_t seq;
  Event event;
  LaneClock clock;  // of the lane, when it was recorded
};

class LaneRecords {
 public:
  bool empty() const { return size_ == 0; }
  const LaneRecord& front() const { return At(0); }
  const LaneRecord& back() const { return At(size_ - 1); }
  uint64_t newest() const { return empty() ? 0 : back().seq; }
  bool full() const { return size_ == ring_.size(); }
  size_t most() const { return ring_.size(); }
  // May throw bad_alloc; then nothing has changed.
  void Grow() {
    std::vector<LaneRecord> more(std::max<size_t>(8, 2 * ring_.size()));
    for (size_t i = 0; i < size_; ++i) more[i] = At(i);
    ring_.swap(more);
    first_ = 0;
  }
  void PushBack(const LaneRecord& record) { ring_[(first_ + size_++) & (ring_.size() - 1)] = record; }
  // The newest event was recorded anew.
  void Extend(uint64_t seq, const LaneClock& clock) {
    LaneRecord& newest = ring_[(first_ + size_ - 1) & (ring_.size() - 1)];
    newest.seq = seq;
    newest.clock = clock;
  }
  void PopFront() {
    first_ = (first_ + 1) & (ring_.size() - 1);
    --size_;
  }
  // The earliest that covers `seq`; null if none does.
  const LaneRecord* Covering(uint64_t seq) const {
    const auto before = [&](size_t i) { return At(i).seq < seq; };
    const size_t at = *std::ranges::partition_point(std::views::iota(size_t{0}, size_), before);
    return at < size_ ? &At(at) : nullptr;
  }

 private:
  const LaneRecord& At(size_t i) const { return ring_[(first_ + i) & (ring_.size() - 1)]; }
  std::vector<LaneRecord> ring_;  // a power of two long
  size_t first_ = 0, size_ = 0;
};

}  // namespace engine::detail
