// A pusher that stalls while it holds the tails of its Vars must not stop completers. The protocol is a template over
// its environment, so the stall is put where a pusher takes a reader group: all tails are locked there.
#include <deque>

#include "order/dependency.h"
#include "support/engine_test.h"
#include "watchdog.h"

namespace engine::test {
namespace {

struct Ctx {
  Gate* stall = nullptr;  // waited for under the locks
  Gate* stalled = nullptr;
  int ready = 0, recycled = 0;
};

struct StallEnv {
  template <class T>
  using Atomic = std::atomic<T>;
  using Ctx = test::Ctx;
  struct OpExtra {};
  struct PusherExtra {};
  struct CompleterExtra {};
  static constexpr detail::Mutant kMutant = detail::Mutant::kNone;
  template <class Op>
  static uint32_t ExtraPins(const Op*) {
    return 0;
  }
  template <class Op>
  static void OnReady(Ctx& ctx, Op*) {
    ++ctx.ready;
  }
  template <class Op>
  static void Recycle(Ctx& ctx, Op*) {
    ++ctx.recycled;
  }
  template <class Group>
  static Group* TakeGroup(Ctx& ctx) {
    if (ctx.stall) {
      ctx.stalled->Open();
      ctx.stall->Wait();
    }
    return new Group;
  }
  template <class Group>
  static void DropGroup(Ctx&, Group* group) {
    delete group;
  }
  static void* Holder(const void*) { return nullptr; }
  static void* HolderAtTail(const void*) { return nullptr; }
  static bool IsHeld(const void*) { return false; }
  static bool InTurn(const void*, const void*) { return false; }
  static void MustRelease(Ctx&, void*) {}
  static bool Holds(void*) { return false; }
  static void SpinOnLock(uint32_t) { std::this_thread::yield(); }
  static void* Scratch(Ctx&) { return nullptr; }
  static void CheckGrant(const void*, uint32_t) {}
  static void CheckPins(const void*, uint32_t) {}
};

using Protocol = detail::Dependency<StallEnv>;

struct Block {
  alignas(64) Protocol::Op op{};
  Protocol::Access access[2]{};
  Block(std::initializer_list<std::pair<Protocol::Var*, AccessMode>> uses) {
    uint32_t writes = 0;
    for (const auto& [var, mode] : uses) {
      access[op.n_access].var = var;
      access[op.n_access].word = uint64_t{op.n_access} << 2 | static_cast<uint64_t>(mode);
      ++op.n_access;
      writes += mode != AccessMode::kRead;
    }
    Protocol::SetPins(&op, writes);
  }
};

TEST(StalledPusherTest, CompletersGoOn) {
  Watchdog watchdog("a completer waits for a stalled pusher", 60);
  std::array<Protocol::Var, 2> vars;
  Protocol::Var *const x = &vars[0], *const y = &vars[1];
  Block writer({{x, AccessMode::kWrite}, {y, AccessMode::kWrite}});
  Block reader({{x, AccessMode::kRead}, {y, AccessMode::kWrite}});
  Protocol::Access* refused = nullptr;
  Ctx mine, theirs;
  ASSERT_EQ(Protocol::Register(mine, &writer.op, 0, &refused), Protocol::Result::kReady);

  Gate stall, stalled;
  theirs.stall = &stall;
  theirs.stalled = &stalled;
  Protocol::Result result{};
  std::thread pusher([&] {
    Protocol::Access* none = nullptr;
    result = Protocol::Register(theirs, &reader.op, 0, &none);
  });
  stalled.Wait();                        // the pusher holds both tails
  Protocol::Complete(mine, &writer.op);  // returns all the same
  EXPECT_EQ(x->settled.load(), 1u);
  EXPECT_EQ(y->settled.load(), 1u);
  stall.Open();
  pusher.join();
  EXPECT_EQ(result, Protocol::Result::kReady);
  Protocol::Complete(theirs, &reader.op);
  EXPECT_EQ(mine.recycled + theirs.recycled, 2);
  Block last({{x, AccessMode::kWrite}});  // closes the reader group, which is then freed
  EXPECT_EQ(Protocol::Register(mine, &last.op, 0, &refused), Protocol::Result::kReady);
  Protocol::Complete(mine, &last.op);
}

}  // namespace
}  // namespace engine::test
