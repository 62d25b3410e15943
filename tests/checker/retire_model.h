// RetireModel: how the thread that asks the devices (src/engine/device/retire.cc) learns that somebody waits, without a timer.
//
//   issue     the device has the work; counts it as issued; light fence; if the thread sleeps without work, wakes it
//   WaitAll   announces itself; heavy fence; if something is issued and not retired: has the thread look; sleeps until told
//   parks     an op that needs what was issued: announces itself under the lane's lock; has the thread look
//   thread    retires what has ended, if anybody waits. With nothing issued it says that it sleeps, heavy fence, looks again, sleeps.
//             With something issued that nobody waits for it says so, looks whether somebody does, sleeps
//
// The timers by which the thread gets up anyway are left out: nobody needs them.
#pragma once

#include "store_buffer.h"

namespace checker {

enum class RetireFault {
  kNone,
  kSleeperNotWoken,   // who issues does not look whether the thread sleeps
  kWaitAllUnnoticed,  // who waits for everything does not look whether anything is issued
  kNoHeavyFence,      // the thread looks again without emptying the issuer's store buffer
  kNoSecondLook,      // the thread sleeps as soon as it has said so
  kAnnouncedTooLate,  // an op has the thread look, and announces itself then
};

struct RetireScenario {
  int ops = 1;         // issued one after another by one thread
  int waits = 0;       // WaitAll calls, each by a thread of its own
  bool parks = false;  // an op is parked behind the last
  RetireFault fault = RetireFault::kNone;
};

class RetireModel final : public Program {
 public:
  explicit RetireModel(const RetireScenario& scenario) : scenario_(scenario) {}

  std::span<std::byte> memory() override { return std::as_writable_bytes(std::span(&s_, 1)); }
  void Begin() override;
  const char* AtRest() override;
  std::string NameOf(const Event& event) const override { return event.remark; }

 private:
  enum Pace : uint8_t { kAsleep, kDozing, kAwake };
  struct alignas(8) State {
    StoreBuffer issued;
    uint8_t launched;  // the device has them
    uint8_t reached;   // and has done them
    uint8_t retired;
    uint8_t pace;
    uint8_t host_waits;  // calls of WaitAll
    uint8_t awaiting;    // parked ops
    uint8_t waited;      // that were told
  };

  void Step(const char* what);
  void IssuerMain();
  void DeviceMain();
  void WaiterMain();
  void ParkedMain();
  void ThreadMain();
  bool Awaited();

  const RetireScenario scenario_;
  int parked_ = 0;
  State s_{};
};

}  // namespace checker
