// A thread that waits for a run sleeps in it (Runs::Park, src/engine/graph/replay_together.cc), until it is given a task, the
// run is over, or its time is up.
//
//   sleeper  says that it waits; under the run's lock: is the run over? Else it is parked. Sleeps while it is parked and has
//            no task. Under the lock: takes the task, or leaves because the run is over or its time is up, or sleeps on
//   giver    under the lock: if the sleeper is parked, gives it the task; wakes it. Out of tasks, under the lock: takes the
//            task back if it still lies there. Then the run is over: `remaining` is zero; if somebody waits, under the
//            lock: nobody is parked any more; wakes it
//   timer    wakes the sleeper at any moment
#include <gtest/gtest.h>

#include "checked_atomic.h"
#include "model_lock.h"
#include "report.h"

namespace checker {
namespace {

enum class ParkingFault {
  kNone,
  kEndUnlooked,    // the sleeper parks without a look whether the run is over
  kWaitUnsaid,     // it says that it waits only when it is parked
  kTakenTwice,     // the giver takes its task back without a look whether it still lies there
  kTaskForgotten,  // a sleeper whose time is up leaves with the task that it has been given
  kEndUnwoken,     // the end of the run wakes nobody
};

class ParkingModel final : public Program {
 public:
  ParkingModel(ParkingFault fault, bool timer) : fault_(fault), timer_(timer) {}

  std::span<std::byte> memory() override { return std::as_writable_bytes(std::span(&s_, 1)); }
  void Begin() override {
    s_.remaining.poke(1);
    s_.parked = kNobody;
    explorer().Start(explorer().AddThread("sleeper", [this] { SleeperMain(); }));
    explorer().Start(explorer().AddThread("giver", [this] { GiverMain(); }));
    if (timer_) explorer().Start(explorer().AddThread("timer", [this] { TimerMain(); }));
  }
  void BeforeAccess(const void*, AccessKind, uint64_t) override { explorer().Point(); }
  const char* AtRest() override {
    if (!s_.left) return "the sleeper sleeps although the run is over";
    return s_.ran == 1 ? nullptr : "the task did not run once";
  }
  std::string NameOf(const Event& event) const override { return event.remark ? event.remark : "word"; }

 private:
  enum Parked : uint8_t { kNobody, kSleeps, kTask };
  static Explorer& explorer() { return Explorer::current(); }

  void Run() {
    explorer().Remark("runs the task");
    if (++s_.ran > 1) explorer().Fail("the task ran twice");
  }
  // The run ends when its task has.
  void End() {
    s_.remaining.store(0);
    if (s_.waits.load() == 0) return;
    s_.lock.Lock();
    const bool sleeps = s_.parked == kSleeps;
    if (sleeps) s_.parked = kNobody;
    s_.lock.Unlock();
    if (sleeps && fault_ != ParkingFault::kEndUnwoken) Wake();
  }
  void Wake() {
    explorer().Point();
    s_.asleep = 0;
  }

  void SleeperMain() {
    if (fault_ != ParkingFault::kWaitUnsaid) s_.waits.store(1);
    s_.lock.Lock();
    const bool over = fault_ != ParkingFault::kEndUnlooked && s_.remaining.load() == 0;
    if (!over) s_.parked = kSleeps;
    s_.lock.Unlock();
    if (fault_ == ParkingFault::kWaitUnsaid) s_.waits.store(1);
    for (bool parked = !over; parked;) {
      explorer().Point();  // the kernel looks and puts it to sleep in one step
      if (s_.parked == kSleeps && !s_.late) s_.asleep = 1;
      explorer().PauseWhile<uint8_t>(&s_.asleep, 1);
      s_.lock.Lock();
      const uint8_t found = s_.parked;
      const bool leaves = found != kSleeps || s_.late;
      if (leaves) s_.parked = kNobody;
      const bool runs = found == kTask && !(fault_ == ParkingFault::kTaskForgotten && s_.late);
      s_.lock.Unlock();
      parked = !leaves;
      if (!runs) continue;
      Run();
      End();
    }
    s_.left = 1;
  }
  void GiverMain() {
    s_.lock.Lock();
    const bool given = s_.parked == kSleeps;
    if (given) s_.parked = kTask;
    s_.lock.Unlock();
    if (given) Wake();
    s_.lock.Lock();
    const bool mine = !given || s_.parked == kTask || fault_ == ParkingFault::kTakenTwice;
    if (given && mine) s_.parked = kSleeps;
    s_.lock.Unlock();
    if (!mine) return;
    Run();
    End();
  }
  void TimerMain() {
    explorer().Point();
    s_.late = 1;
    s_.asleep = 0;
  }

  struct State {
    CheckedAtomic<uint8_t> remaining, waits;
    ModelLock lock;
    uint8_t parked = 0, asleep = 0, late = 0, ran = 0, left = 0;
  };
  const ParkingFault fault_;
  const bool timer_;
  State s_{};
};

Outcome Explore(ParkingFault fault, bool timer) {
  ParkingModel model(fault, timer);
  Explorer explorer(model);
  return explorer.Run();
}

TEST(Parking, ATaskIsRunOnceAndTheSleeperLeaves) {
  ReportHolds(Explore(ParkingFault::kNone, false));
  ReportHolds(Explore(ParkingFault::kNone, true));
}
TEST(Parking, MutantEndUnlookedIsCaught) {
  ReportCaught(Explore(ParkingFault::kEndUnlooked, false), "the sleeper sleeps although");
}
TEST(Parking, MutantWaitUnsaidIsCaught) {
  ReportCaught(Explore(ParkingFault::kWaitUnsaid, false), "the sleeper sleeps although");
}
TEST(Parking, MutantTakenTwiceIsCaught) {
  ReportCaught(Explore(ParkingFault::kTakenTwice, false), "the task ran twice");
}
TEST(Parking, MutantTaskForgottenIsCaught) {
  ReportCaught(Explore(ParkingFault::kTaskForgotten, true), "the task did not run once");
}
TEST(Parking, MutantEndUnwokenIsCaught) {
  ReportCaught(Explore(ParkingFault::kEndUnwoken, false), "the sleeper sleeps although");
}

}  // namespace
}  // namespace checker
