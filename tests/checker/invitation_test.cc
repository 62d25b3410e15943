// The invitation of a run's team (src/engine/graph/replay_together.cc): a thread puts a share into its own queue for an idle
// worker, and takes it back if it runs out of tasks first.
//
//   sender   queues the share, and names it in the run as the invitation; runs a node, which may push an op; then, under the
//            run's lock: is the share still the invitation, and still the oldest op in the queue? Then it is taken back
//   worker   takes ops from the queue; of a share, clears the invitation under the lock, and recycles the block at last
//
// The op that the node pushes gets the share's block if that has been recycled. So the block alone does not say that what
// lies in the queue is the share.
#include <gtest/gtest.h>

#include "checked_atomic.h"
#include "model_lock.h"
#include "report.h"

namespace checker {
namespace {

enum class InvitationFault {
  kNone,
  kNobodyLooks,     // the sender goes by the block alone
  kClearedLate,     // the worker recycles the block before it clears the invitation
  kTakenUnclaimed,  // the sender takes the share without claiming its place in the queue
};

class InvitationModel final : public Program {
 public:
  explicit InvitationModel(InvitationFault fault) : fault_(fault) {}

  std::span<std::byte> memory() override { return std::as_writable_bytes(std::span(&s_, 1)); }
  void Begin() override {
    explorer().Start(explorer().AddThread("sender", [this] { SenderMain(); }));
    explorer().Start(explorer().AddThread("worker", [this] { WorkerMain(); }));
  }
  void BeforeAccess(const void*, AccessKind, uint64_t) override { explorer().Point(); }
  const char* AtRest() override {
    if (s_.tasks != 1) return "the task of the share did not run once";
    return s_.ops == 1 ? nullptr : "the op did not run once";
  }
  std::string NameOf(const Event& event) const override { return event.remark ? event.remark : "queue"; }

 private:
  enum Kind : uint8_t { kFree, kShare, kOp };
  static constexpr uint8_t kShared = 1, kOther = 2;  // blocks
  static Explorer& explorer() { return Explorer::current(); }

  void Queue(uint8_t block, Kind kind) {
    s_.kind[block] = kind;
    const uint32_t tail = s_.tail.peek();
    s_.queue[tail] = block;
    s_.tail.store(tail + 1);
    ++s_.posts;
  }
  void Run(uint8_t block) {
    explorer().Remark(s_.kind[block] == kShare ? "runs the share's task" : "runs the op");
    ++(s_.kind[block] == kShare ? s_.tasks : s_.ops);
    if (s_.tasks > 1) explorer().Fail("the task of the share ran twice");
  }

  void SenderMain() {
    s_.lock.Lock();
    s_.invitation = kShared;
    s_.lock.Unlock();
    Queue(kShared, kShare);
    explorer().Point();  // a node runs, and pushes
    Queue(s_.kind[kShared] == kFree ? kShared : kOther, kOp);
    s_.lock.Lock();
    const bool named = fault_ == InvitationFault::kNobodyLooks || s_.invitation == kShared;
    uint32_t head = s_.head.load();
    if (named && head < s_.tail.peek() && s_.queue[head] == kShared &&
        (fault_ == InvitationFault::kTakenUnclaimed || s_.head.compare_exchange_strong(head, head + 1))) {
      explorer().Remark("takes the share back");
      if (s_.kind[kShared] != kShare) explorer().Fail("what was taken back is no share");
      s_.invitation = 0;
      Run(kShared);
    }
    s_.lock.Unlock();
  }
  void WorkerMain() {
    for (uint8_t i = 0; i < 2; ++i) {
      explorer().PauseWhile<uint8_t>(&s_.posts, i);
      uint32_t head = s_.head.load();
      while (head < s_.tail.load() && !s_.head.compare_exchange_strong(head, head + 1)) {
      }
      if (head >= s_.tail.load()) continue;  // it was taken back
      const uint8_t block = s_.queue[head];
      if (s_.kind[block] != kShare) {
        Run(block);
        continue;
      }
      if (fault_ == InvitationFault::kClearedLate) {
        RunAndRecycle(block);
        ClearInvitation();
      } else {
        ClearInvitation();
        RunAndRecycle(block);
      }
    }
  }
  void ClearInvitation() {
    s_.lock.Lock();
    s_.invitation = 0;
    s_.lock.Unlock();
  }
  void RunAndRecycle(uint8_t block) {
    Run(block);
    explorer().Point();
    s_.kind[block] = kFree;
  }

  struct State {
    CheckedAtomic<uint32_t> head, tail;
    uint8_t queue[4] = {};
    uint8_t kind[3] = {};
    ModelLock lock;
    uint8_t invitation = 0, posts = 0, tasks = 0, ops = 0, padding[4] = {};
  };
  const InvitationFault fault_;
  State s_{};
};

Outcome Explore(InvitationFault fault) {
  InvitationModel model(fault);
  Explorer explorer(model);
  return explorer.Run();
}

TEST(Invitations, AreTakenBackOrAcceptedOnce) { ReportHolds(Explore(InvitationFault::kNone)); }
TEST(Invitations, MutantNobodyLooksIsCaught) {
  ReportCaught(Explore(InvitationFault::kNobodyLooks), "what was taken back is no share");
}
TEST(Invitations, MutantClearedLateIsCaught) {
  ReportCaught(Explore(InvitationFault::kClearedLate), "what was taken back is no share");
}
TEST(Invitations, MutantTakenUnclaimedIsCaught) {
  ReportCaught(Explore(InvitationFault::kTakenUnclaimed), "the task of the share");
}

}  // namespace
}  // namespace checker
