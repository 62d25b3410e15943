// WideLoop: one ParallelFor of a node that may use several threads of its run's team (NodeDesc::threads).
//
// The node's thread opens the loop in its run. The team's threads look for open loops before they take a task, so a node
// gets its second thread when that one has ended what it was at, and no thread is ever kept back for it.
//
// Threads:   Work by any thread that is counted in `helpers`, and by the node's own.
// Ownership: on the stack of the node's thread, which closes the loop and waits for the helpers before it returns.
// Order:     a helper's effects are published when it counts itself out.
// Errors:    the first exception of a piece is kept for the node's thread, and no further piece begins.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>

#include "base/sync.h"

namespace engine::detail {

struct WideLoop {
  using Piece = std::function<void(size_t, size_t)>;

  WideLoop(size_t count, size_t grain, uint32_t threads, const Piece& run)
      : n(count),
        step(std::max({grain, size_t{1}, (count + kPieces * threads - 1) / (kPieces * threads)})),
        most_helpers(threads - 1),
        piece(run) {}

  // Runs pieces until none is left.
  void Work() noexcept {
    try {
      // relaxed: each piece is claimed once, and claiming it publishes nothing.
      for (size_t at; (at = next.fetch_add(step, std::memory_order_relaxed)) < n;) piece(at, std::min(at + step, n));
    } catch (...) {
      next.store(n, std::memory_order_relaxed);
      MutexLock lock(error_mu);
      if (!error) error = std::current_exception();
    }
  }
  bool Open() const { return next.load(std::memory_order_relaxed) < n; }
  bool HasRoom() const { return Open() && helpers.load(std::memory_order_relaxed) < most_helpers; }  // under ready_mu
  // `forked`: returns whether this is a fork's child, and the helpers are the parent's.
  template <class Forked>
  void AwaitHelpers(Forked forked) const {
    // acquire: what the helpers did. Partner: the release of whoever leaves (Runs::Help).
    for (uint32_t round = 0; helpers.load(std::memory_order_acquire) != 0 && !forked(); ++round) {
      if (round % tuning::kIdlePauses == tuning::kIdlePauses - 1) sched_yield();
      Pause();
    }
  }

  static constexpr size_t kPieces = 4;  // for each thread, so that one that comes late finds some
  const size_t n, step;
  const uint32_t most_helpers;
  const Piece& piece;
  std::atomic<size_t> next{0};
  std::atomic<uint32_t> helpers{0};  // grows under the run's ready_mu only
  Mutex error_mu;
  std::exception_ptr error GUARDED_BY(error_mu);
  WideLoop* below = nullptr;  // the next open loop of the run
};

}  // namespace engine::detail
