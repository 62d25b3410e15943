// Redirect: while it lives, this thread's pushes to an engine (Push, TryPush and their asynchronous forms; not held ops
// or Operators) go to another Submitter instead. Bulk uses it to stand in front of an engine.
//
// The innermost Redirect counts. A bulk's Redirect yields: it counts only if the thread has no other kind, and only for
// ops with a placement of their own. So pushes to the default pool pay nothing for a bulk.
//
// Threads:   made and destroyed on the thread that it redirects, in any order with other Redirects.
// Ownership: it may outlive the engine.
#pragma once

#include "engine/engine.h"

namespace engine {

class Redirect {
 public:
  enum class Rank : uint8_t { kFirst, kYields };
  Redirect(Engine& engine, Submitter& to, Rank rank = Rank::kFirst) noexcept;
  ~Redirect();
  Redirect(const Redirect&) = delete;
  Redirect& operator=(const Redirect&) = delete;

  // The Submitter that gets this thread's pushes to `engine` of ops with this placement; null: the engine itself.
  static Submitter* Of(const Engine& engine, const Placement& place) noexcept;

 private:
  friend class Engine;
  static bool MayTake(const Placement& place) noexcept;  // a quick look: false is certain
  detail::EngineCore* const core_;                       // compared and never followed, because the engine may be gone
  Submitter* const to_;
  const Rank rank_;
  // Whether this thread may have a Redirect for ops of every placement. Kept when that one ends first: then Of() finds none.
  const bool any_first_;
  Redirect* outer_;
};

}  // namespace engine
