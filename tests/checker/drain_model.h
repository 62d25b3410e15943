// DrainModel: how WaitAll learns that every push that had returned has ended, without a counter common to all.
//
//   push      reads the epoch's parity; counts itself as pushed under it; registers; returns
//             a refused push takes its count back, light fence, and looks and notes as a completion does
//   complete  counts itself as completed under the op's parity; light fence; if that parity is waited for, sums completed, then
//             pushed, behind a full fence (production: a lock), and notes it if they are equal
//   WaitAll   first the other parity, then turns the epoch over and the parity that was current: announces what it
//             waits for, heavy fence, sums completed, then pushed, and sleeps until noted while they differ
//
// The other parity too, because a push may read the epoch, be overtaken by a whole WaitAll, and then count itself
// under a parity that nobody would look at. Completed before pushed, because the sums are no snapshot.
#pragma once

#include <array>

#include "store_buffer.h"

namespace checker {

enum class DrainFault {
  kNone,
  kOneParity,       // waits only for the parity that was current
  kPushedFirst,     // sums pushed, then completed
  kNoHeavyFence,    // looks without emptying the completers' store buffers
  kRefusalUnnoted,  // a refused push takes its count back in silence
  kUnfencedLook,    // a completer sums while its own count is still in its buffer
};

struct DrainScenario {
  std::array<int, 3> pushes{};  // of each pushing thread
  int waits = 1;                // WaitAll calls, each by a thread of its own
  bool refusal = false;         // one more thread, whose only push is refused
  DrainFault fault = DrainFault::kNone;
};

class DrainModel final : public Program {
 public:
  static constexpr int kMaxOps = 4;
  static constexpr int kMaxPushers = 3;

  explicit DrainModel(const DrainScenario& scenario) : scenario_(scenario) {}

  std::span<std::byte> memory() override { return std::as_writable_bytes(std::span(&s_, 1)); }
  void Begin() override;
  const char* AtRest() override;
  std::string NameOf(const Event& event) const override;

 private:
  using ByParity = std::array<StoreBuffer, 2>;
  struct alignas(8) State {
    std::array<ByParity, kMaxPushers> pushed;  // by the thread that pushes
    std::array<ByParity, kMaxOps> completed;   // by the thread that completes: one an op
    std::array<uint8_t, 2> refused;            // pushed by the thread that is refused
    std::array<uint8_t, kMaxOps> parity;       // of each op
    uint8_t epoch;
    uint8_t draining;  // 1 + parity that is waited for
    uint8_t noted;
    uint8_t locked;
    uint8_t returned;  // masks of ops
    uint8_t ended;
    uint8_t waited;  // calls that returned
  };

  void Step(const char* what, int op = 0);
  void PusherMain(int pusher, int first_op);
  void RefusedMain();
  void CompleterMain(int op);
  void NoteIfOver(int op);
  void WaiterMain();
  void WaitFor(int parity);
  bool Drained(int parity, int own = -1);
  int SumCompleted(int parity, int own = -1);
  int SumPushed(int parity);
  int ops() const;

  const DrainScenario scenario_;
  std::array<int, kMaxOps> completer_{};
  State s_{};
};

}  // namespace checker
