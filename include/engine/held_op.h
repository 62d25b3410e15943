// HeldOp: one op that has its place in the order, and starts only when it is released or dropped, or when the engine
// shuts down. Engine::PushHeld makes one. For tests and for decorators.
//
// Threads:   Release by any thread, one at a time.
// Ownership: it may outlive the engine.
#pragma once

#include <utility>

namespace engine {

namespace detail {
struct CompletionState;
}

class HeldOp {
 public:
  HeldOp() noexcept = default;
  HeldOp(HeldOp&& other) noexcept : claim_(std::exchange(other.claim_, nullptr)) {}
  HeldOp& operator=(HeldOp&& other) noexcept {
    Release();
    claim_ = std::exchange(other.claim_, nullptr);
    return *this;
  }
  ~HeldOp() { Release(); }
  void Release() noexcept;

 private:
  friend class Engine;
  detail::CompletionState* claim_ = nullptr;
};

}  // namespace engine
