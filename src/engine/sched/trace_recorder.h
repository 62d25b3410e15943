// TraceRing: the events of one thread slot. The slot's thread appends; StopTrace collects once the engine is quiet.
//
// Recording starts and stops through one read-mostly flag; while it is off an op pays one predictable branch.
#pragma once

#include <cstdint>
#include <vector>

#include "base/sync.h"
#include "engine/trace.h"

namespace engine::detail {

class TraceRing {
 public:
  static constexpr size_t kMostEvents = size_t{1} << 20;  // a slot; later events are left out
  void Add(const TraceEvent& event) EXCLUDES(mu_) {
    MutexLock lock(mu_);  // uncontended but for the moment of collection
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
