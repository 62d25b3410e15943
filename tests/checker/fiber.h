// Fiber: the stack and registers of one virtual thread, switched by hand.
//
// Everything that a parked fiber knows lies in live(): saved registers and frames, at an address that never changes.
// So the explorer copies a thread by copying bytes, and tells two local states apart by comparing bytes. Below live()
// everything is zero, so that what a frame leaves uninitialised does not depend on which branch was explored before.
//
// Threads: one. x86-64, System V ABI.
#pragma once

#include <cstddef>
#include <span>

namespace checker {

class Fiber {
 public:
  using Body = void (*)(void* argument);

  Fiber() = default;
  Fiber(const Fiber&) = delete;

  // The next Resume enters body(argument), which must never return: its last act is a Yield.
  void Prepare(Body body, void* argument);
  void Resume();        // called by the scheduler: runs the fiber until its next Yield
  static void Yield();  // called by the fiber that runs

  std::span<const std::byte> live() const { return {sp_, stack_ + kStackBytes}; }
  // Puts back what live() was earlier.
  void Restore(std::span<const std::byte> live);
  void Clear();  // the fiber is over

 private:
  static constexpr size_t kStackBytes = 4096;
  static constexpr size_t kGuardBytes = 256;

  void ZeroBelow(std::byte* from, std::byte* to);

  alignas(64) std::byte stack_[kStackBytes] = {};
  std::byte* sp_ = stack_ + kStackBytes;
};

}  // namespace checker
