// TraceRing: the events of one thread slot. The slot's thread adds them; StopTrace collects those of all slots.
//
// One flag, which is rarely written, starts and stops the recording. While it is off, an op pays one predictable
// branch.
#pragma once

#include <cstdint>
#include <vector>

#include "base/sync.h"
#include "engine/trace.h"

namespace engine::detail {

class TraceRing {
 public:
  static constexpr size_t kMostEvents = size_t{1} << 20;  // for each slot; later events are left out
  void Add(const TraceEvent& event) EXCLUDES(mu_) {
    MutexLock lock(mu_);  // uncontended, except while StopTrace collects
    if (events_.size() < kMostEvents) events_.push_back(event);
  }
  void MoveTo(std::vector<TraceEvent>& out) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    out.insert(out.end(), events_.begin(), events_.end());
    events_.clear();
    events_.shrink_to_fit();
  }

 private:
  Mutex mu_;
  std::vector<TraceEvent> events_ GUARDED_BY(mu_);
};

}  // namespace engine::detail
