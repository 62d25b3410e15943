// PieceOfOp: what the thread of a piece of ParallelFor takes over from its op.
//
// A piece runs on whichever thread oneTBB gives it to, and is inside its op all the same: what it pushes is pushed inside
// the op, under the scopes of the op's thread, and what would wait for the op itself is refused. It may not wait for other
// ops of its engine either: the op's worker, which whoever waits has to lend away, is another thread's.
//
// Threads: made on the op's thread; an Inside on the piece's, for the time of the piece, while the op's thread is in ParallelFor.
#pragma once

#include <utility>

#include "core/core.h"

namespace engine::detail {

class PieceOfOp {
 public:
  class Inside;
  PieceOfOp() noexcept : frame_(t_frame), scopes_{.cancel = t_scopes.cancel, .policy = t_scopes.policy} {}

 private:
  void ExchangeWithThread() noexcept {
    std::swap(t_frame, frame_);
    std::swap(t_scopes, scopes_);
    std::swap(t_in_piece, in_piece_);
  }
  BodyFrame* frame_;
  PushScopes scopes_;  // no bulk or capture: these are one thread's
  bool in_piece_ = true;
};

class PieceOfOp::Inside {
 public:
  explicit Inside(const PieceOfOp& op) noexcept : other_(op) {
    other_.ExchangeWithThread();
    t_scopes.aside = &other_.scopes_;
  }
  ~Inside() { other_.ExchangeWithThread(); }
  Inside(const Inside&) = delete;

 private:
  PieceOfOp other_;  // inside the piece, what the thread had before
};

}  // namespace engine::detail
