// RoomWatch: while it lives, a push of this thread that waits for room (EngineOptions::max_pending) calls `look` about once a
// period. What `look` throws comes out of the push, and nothing was pushed. So a thread that has to notice something else, such as
// Python's main thread Ctrl-C, does not miss it for as long as the engine is full.
//
// Threads:   the watched thread makes it, calls `look` without a lock of the engine, and destroys it. The innermost counts.
// Ownership: on the stack.
#pragma once

#include <chrono>
#include <functional>

namespace engine {

namespace detail {
class Admission;
}

class RoomWatch {
 public:
  RoomWatch(std::chrono::nanoseconds period, std::function<void()> look);
  ~RoomWatch();
  RoomWatch(const RoomWatch&) = delete;
  RoomWatch& operator=(const RoomWatch&) = delete;

 private:
  friend class detail::Admission;
  const std::chrono::nanoseconds period_;
  const std::function<void()> look_;
  RoomWatch* const outer_;
};

}  // namespace engine
