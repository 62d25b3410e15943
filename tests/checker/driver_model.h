// DriverModel: who runs the ops of the caller pool (wait.cc). Threads that wait run them; one that sleeps is listed, and
// whoever posts an op wakes the one listed last.
//
//   waiter   until its word says done: runs an op if there is one; else word pending -> parked; lists itself; heavy fence;
//            looks at the pool; sleeps while the word says parked; unlists itself; word -> pending
//            leaving: passes the wake on, if the pool has been used and has an op
//   inside   a waiter inside an op, which drives nothing: if there is an op it asks for a thread that does, is refused, passes the wake
//            on, and lists itself no more
//   post     queues the op; says that the pool is used; light fence; looks whether somebody is listed; takes the last one off the list: word
//            parked -> drive, and wakes it; if that word had changed, the next one
//   end      of what a waiter waits for: word -> done
#pragma once

#include <array>

#include "store_buffer.h"

namespace checker {

enum class DriverFault {
  kNone,
  kNoHeavyFence,      // a waiter looks at the pool without emptying the posters' store buffers
  kNothingPassed,     // a waiter that leaves lets the wake that it was given go with it
  kUsedReadEarly,     // it passes it on only if the pool had been used when it began to wait
  kRefusedInSilence,  // a waiter inside an op that is refused a driver keeps the wake that it was given
};

struct DriverScenario {
  int posts = 1;    // each op ends the wait of one more waiter
  int waiters = 2;  // of these, `posts` wait for a posted op; the others for something else, which ends by itself
  int inside = 0;   // the last so many waiters are inside ops; what they wait for ends when another wait is over
  DriverFault fault = DriverFault::kNone;
};

class DriverModel final : public Program {
 public:
  static constexpr int kMaxWaiters = 3;

  explicit DriverModel(const DriverScenario& scenario) : scenario_(scenario) {}

  std::span<std::byte> memory() override { return std::as_writable_bytes(std::span(&s_, 1)); }
  void Begin() override;
  const char* AtRest() override;
  std::string NameOf(const Event& event) const override;

 private:
  enum Word : uint8_t { kPending, kParked, kDrive, kDone };
  struct alignas(8) State {
    std::array<Word, kMaxWaiters> word;
    std::array<uint8_t, kMaxWaiters> list;  // waiters that are listed, in the order of their sleep
    uint8_t listed;
    uint8_t locked;
    StoreBuffer queued;  // by the poster
    uint8_t taken;
    uint8_t used;
    uint8_t returned;
    std::array<uint8_t, kMaxWaiters> refused;
  };

  static void Step(const char* what, int waiter = 0);
  void WaiterMain(int waiter);
  bool Drive();
  void AskForDriver(int waiter);
  bool IsInside(int waiter) const { return waiter >= scenario_.waiters - scenario_.inside; }
  void Sleep(int waiter);
  void WakeDriver(bool posted);
  void PosterMain();
  void EndWait(int waiter);
  void Lock();
  void Unlist(size_t at);
  bool HasReady() const { return s_.taken < s_.queued.visible; }

  const DriverScenario scenario_;
  State s_{};
};

}  // namespace checker
