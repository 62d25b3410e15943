// OrderPoint: a place on a lane, "everything up to here". VarPoints: where the device work on a Var was ordered.
//
// An op on a device is over for the dependency protocol once it is issued: its order is on the device from then on.
// What still has to be known about it is its point. A Var keeps the point of its last write, and of each lane the last
// read since that write. Whoever comes next, granted by the protocol, asks them what to wait for: another lane on the
// device, the host by retirement.
//
// Threads:   changed by granted ops only: alone for a write, under `mu` for reads, which may run together. Waits look
//            at any time, hence under `mu` as well.
// Ownership: made at the first device access of a Var, freed with it.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/engine_limits.h"
#include "base/sync.h"

namespace engine::detail {

struct OrderPoint {
  uint64_t seq = 0;  // of the lane, from 1; 0: nothing
  uint32_t lane = 0;
};

struct VarPoints {
  Mutex mu;
  OrderPoint write GUARDED_BY(mu);
  std::vector<OrderPoint> reads GUARDED_BY(mu);  // at most one a lane
};

}  // namespace engine::detail
