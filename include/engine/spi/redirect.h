// Redirect: while it lives, what this thread pushes to an engine (Push, TryPush and their asynchronous forms; not held ops
// or Operators) goes to another Submitter instead. That is how bulk and capture stand in front of an engine.
//
// The innermost Redirect counts, but one that yields (a bulk's) only where no other is, and only for ops with a placement of
// their own: those of the default pool pay nothing for it.
//
// Threads:   of the thread that made it, on which it ends; in any order with others.
// Ownership: may outlive the engine.
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

  // Where this thread's pushes to `engine` of ops that are placed there go; null: to the engine itself.
  static Submitter* Of(const Engine& engine, const Placement& place) noexcept;

 private:
  friend class Engine;
  detail::EngineCore* const core_;  // only compared, never followed: the engine may be gone
  Submitter* const to_;
  const Rank rank_;
  Redirect* outer_;
};

}  // namespace engine
