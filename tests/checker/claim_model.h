// ClaimModel: the blocks of claims and completions, taken and given back while a shutdown looks for those that nobody has
// called yet (completion_state.h).
//
//   push       takes a free block: called = 1, the op, then refs = 1; registers: accepted, called = 0; refused, drops the count
//   handle     called 0 -> 1: starts its op; drops the count
//   shutdown   each block: counts itself in unless refs is 0; called 0 -> 1: starts the op that the block names; drops the count
//   a count    the last one frees the block, and the next push takes it
#pragma once

#include <array>

#include "program.h"

namespace checker {

enum class ClaimFault {
  kNone,
  kOpenAtOnce,  // called = 0 from the beginning: shutdown starts an op that has no place yet, or is refused
  kUncounted,   // shutdown does not count itself in, and calls a block that is another's by then
};

struct ClaimScenario {
  std::array<int, 2> pushes{};  // of each pushing thread; blocks are one fewer than pushes
  int refused = -1;             // the push that is
  int shutdowns = 1;            // walks, one after another
  ClaimFault fault = ClaimFault::kNone;
};

class ClaimModel final : public Program {
 public:
  static constexpr int kMaxOps = 4;

  explicit ClaimModel(const ClaimScenario& scenario) : scenario_(scenario) {}

  std::span<std::byte> memory() override { return std::as_writable_bytes(std::span(&s_, 1)); }
  void Begin() override;
  const char* AtRest() override;
  std::string NameOf(const Event& event) const override;

 private:
  struct Block {
    uint8_t taken;
    uint8_t refs;
    uint8_t called;
    uint8_t op;
  };
  struct alignas(8) State {
    std::array<Block, kMaxOps> block;
    std::array<uint8_t, kMaxOps> block_of;
    uint8_t registered;  // masks of ops
    uint8_t started;
    uint8_t free;  // blocks
  };

  static void Step(const char* what, int number = 0);
  void PusherMain(int first, int last);
  void HandleMain(int op);
  void ShutdownMain();
  bool Call(Block& block);
  void StartOp(int op);
  void Drop(Block& block);
  int ops() const { return scenario_.pushes[0] + scenario_.pushes[1]; }

  const ClaimScenario scenario_;
  std::array<int, kMaxOps> handle_{};
  State s_{};
};

}  // namespace checker
