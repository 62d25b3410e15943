// ManualBulkClock: replaces, in tests, the clock that releases a bulk after a pause in the pushes. While one lives, only Tick
// moves that clock.
//
// Threads: any; one at a time.
// Errors:  none.
#pragma once

namespace engine {

class ManualBulkClock {
 public:
  ManualBulkClock();
  ~ManualBulkClock();
  ManualBulkClock(const ManualBulkClock&) = delete;
  // The end of a millisecond. False: no bulk is open, so the clock would sleep.
  bool Tick();
};

}  // namespace engine
