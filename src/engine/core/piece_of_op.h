// PieceOfOp: what a piece of ParallelFor takes over from its op.
//
// A piece runs on any thread that oneTBB chooses, and counts as inside its op: its pushes are pushes inside the op,
// under the scopes of the op's thread, and it may not wait for the op itself. It may not wait for other ops of its
// engine either, because a wait has to lend the worker's role, which belongs to the op's thread.
//
// Threads: a PieceOfOp is made on the op's thread; an Inside lives on the piece's thread during the piece, while the
//          op's thread is in ParallelFor.
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
  PushScopes scopes_;  // without bulk and capture, which only one thread may use
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
  PieceOfOp other_;  // during the piece: what the thread had before
};

}  // namespace engine::detail
