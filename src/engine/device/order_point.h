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

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "base/engine_limits.h"
#include "base/sync.h"

namespace engine::detail {

struct OrderPoint {
  uint64_t seq = 0;  // of the lane, from 1; 0: nothing
  uint32_t lane = 0;
};

// Of each lane, the number that somebody must come behind.
struct WaitPoints {
  std::array<uint64_t, kMaxLanes> seq{};
  uint32_t lanes = 0;  // mask
  void Add(OrderPoint p) {
    if (p.seq == 0) return;
    lanes |= 1u << p.lane;
    seq[p.lane] = std::max(seq[p.lane], p.seq);
  }
  // Whether fn(OrderPoint) is true for each of them.
  template <class Fn>
  bool All(Fn&& fn) const {
    for (uint32_t m = lanes; m; m &= m - 1) {
      const auto lane = static_cast<uint32_t>(__builtin_ctz(m));
      if (!fn(OrderPoint{seq[lane], lane})) return false;
    }
    return true;
  }
};

struct VarPoints {
  OrderPoint LastWrite() EXCLUDES(mu) {
    MutexLock lock(mu);
    return write;
  }
  Mutex mu;
  OrderPoint write GUARDED_BY(mu);
  std::vector<OrderPoint> reads GUARDED_BY(mu);  // at most one a lane
};

}  // namespace engine::detail
