// A run is refused memory while it goes on: nodes that cannot be handed to their threads fail with bad_alloc, and what can do without
// does. The run ends, and the plan may run again.
#include "support/no_memory.h"

#include <array>
#include <atomic>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "engine/plan.h"
#include "support/on_device.h"

namespace engine::test {
namespace {

constexpr int kNodes = 1000;  // more than the blocks that a thread keeps

class PlanNoMemoryTest : public testing::TestWithParam<int> {
 protected:
  int workers() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Workers, PlanNoMemoryTest, testing::Values(0, 1));

// Calls what may run nodes on this thread, which may leave it without memory: then once more.
template <class F>
void WithMemoryInTheEnd(F&& f) {
  for (;;) {
    t_fails = false;
    try {
      f();
      t_fails = false;
      return;
    } catch (const std::bad_alloc&) {
    }
  }
}

// The thread that runs nodes without a placement has memory again when this has ended.
void GiveMemoryAgain(Engine& eng) {
  t_fails = false;
  const Var again = eng.NewVar("again");
  eng.Push({.writes = {again}}, [] { t_fails = false; });
  WithMemoryInTheEnd([&] { eng.Wait(again); });
}

// How the run ended: true, if no node failed.
bool Ended(engine::Run run) {
  bool ended = true;
  WithMemoryInTheEnd([&] {
    try {
      run.Wait();
    } catch (const OpError& error) {
      t_fails = false;
      // Of many failures only the first ones have records of their own.
      EXPECT_TRUE(CausedBy<std::bad_alloc>(error) || Has(error.what(), "there was no memory")) << error.what();
      ended = false;
    }
  });
  return ended;
}

TEST_P(PlanNoMemoryTest, ANodeThatCannotBePostedFailsAndTheRunEnds) {
  for (const Policy policy : {Policy::kThreaded, Policy::kInline}) {
    EngineOptions o = Quiet(workers());
    o.io_threads = 1;
    Engine eng(o);
    std::atomic<bool> refuse{true};
    std::atomic<int> ran{0}, behind{0};
    Gate posted;
    Graph graph;
    const NodeId first = graph.Add({.name = "first", .outputs = 1}, [&](NodeContext& ctx) {
      ctx.Return(0, 1);
      if (refuse) t_fails = true;
    });
    for (int i = 0; i < kNodes; ++i) {
      const NodeId there =
          graph.Add({.name = "there", .inputs = {first[0]}, .outputs = 1, .place = Io()}, [&](NodeContext& ctx) {
            ++ran;
            ctx.Return(0, 1);
          });
      graph.Add({.name = "behind", .inputs = {there[0]}}, [&] { ++behind; });
    }
    graph.Add({.name = "posted", .inputs = {first[0]}}, [&] { posted.Open(); });
    const Plan plan = graph.Compile(eng);
    for (const bool refused : {true, false}) {
      refuse = refused;
      ran = behind = 0;
      // The nodes' thread is busy until all are posted, or else they give memory back that the next ones take.
      if (refused) eng.Push({.name = "busy", .place = Io()}, [&] { posted.WaitFor(1s); });
      engine::Run run = plan.Start({}, {.policy = policy});
      EXPECT_EQ(Ended(std::move(run)), !refused);
      GiveMemoryAgain(eng);
      EXPECT_EQ(ran, behind);
      if (!refused) {
        EXPECT_EQ(ran, kNodes);
      }
    }
    EXPECT_THROW(eng.WaitAll(), OpError);
  }
}

TEST_P(PlanNoMemoryTest, AnAsynchronousNodeThatCannotBeStartedFailsAndTheRunEnds) {
  Engine eng(Quiet(workers()));
  std::vector<Completion> started(kNodes);
  std::atomic<bool> refuse{true};
  std::atomic<size_t> count{0};
  Graph graph;
  const NodeId first = graph.Add({.name = "first", .outputs = 1}, [&](NodeContext& ctx) {
    ctx.Return(0, 1);
    if (refuse) t_fails = true;
  });
  for (int i = 0; i < kNodes; ++i)
    graph.AddAsync({.name = "asynchronous", .inputs = {first[0]}},
                   [&](NodeContext&, Completion done) { started[count++] = std::move(done); });
  const Plan plan = graph.Compile(eng);
  for (const bool refused : {true, false}) {
    refuse = refused;
    engine::Run run = plan.Start();
    GiveMemoryAgain(eng);  // behind all that the run starts
    EXPECT_EQ(count == kNodes, !refused);
    for (size_t i = 0, n = count.exchange(0); i < n; ++i) std::exchange(started[i], Completion())();
    EXPECT_EQ(Ended(std::move(run)), !refused);
  }
  EXPECT_THROW(eng.WaitAll(), OpError);
}

// Its end is called on a thread that is new and has no memory; what is ready then needs a share.
TEST_P(PlanNoMemoryTest, ACompletionMayBeCalledOnANewThread) {
  EngineOptions o = Quiet(workers());
  o.io_threads = 1;
  Engine eng(o);
  Slot<Completion> started;
  std::atomic<int> ran{0};
  Graph graph;
  const NodeId later = graph.AddAsync({.name = "asynchronous", .outputs = 1}, [&](NodeContext& ctx, Completion done) {
    ctx.Return(0, 1);
    started.Put(std::move(done));
  });
  for (int i = 0; i < 3; ++i) graph.Add({.name = "behind", .inputs = {later[0]}}, [&] { ++ran; });
  const Plan plan = graph.Compile(eng);
  for (int i = 1; i <= 5; ++i) {
    engine::Run run = plan.Start();
    eng.WaitFor(eng.NewVar("runs what is there"), std::chrono::milliseconds(0));
    std::thread starts;
    if (workers() == 0) starts = std::thread([&] { run.Wait(); });  // somebody has to run it
    std::thread([done = started.Take()]() mutable {
      const NoMemory none;
      done();
      done = Completion();
    }).join();
    run.Wait();
    if (starts.joinable()) starts.join();
    EXPECT_EQ(ran, 3 * i);
  }
}

// Takes all blocks that there are without new memory, in ops that wait for `held`.
template <size_t kBytes>
void TakeBlocks(Engine& eng, const Var& held) {
  try {
    for (;;) eng.Push({.updates = {held}}, [more = std::array<char, kBytes>{}] { (void)more; });
  } catch (const std::bad_alloc&) {
  }
}

// The body's wait has given the thread's role away, and the rest of the run cannot be handed to whoever has it.
TEST(PlanNoMemoryTest, ARunGoesOnWithoutItsRole) {
  for (const bool together : {false, true}) {
    Engine eng(Quiet(together ? 2 : 1));
    const Var inner = eng.NewVar("inner"), held = eng.NewVar("held");
    std::atomic<int> ran{0};
    Graph graph;
    NodeDesc desc{.name = "waits", .outputs = 1};
    const NodeId waits = graph.Add(desc, [&](NodeContext& ctx) {
      for (int i = 0; i < 3; ++i) {
        eng.Push({.writes = {inner}}, [] {});
        eng.Wait(inner);
      }
      ctx.Return(0, 1);
      if (together) Gate().WaitFor(std::chrono::milliseconds(1));  // as long as it takes to be worth a team
      t_fails = true;
      TakeBlocks<1>(eng, held);
      TakeBlocks<40>(eng, held);
      TakeBlocks<100>(eng, held);
    });
    for (int i = 0; i < 5; ++i) {
      graph.Add({.name = "rest", .inputs = {waits[0]}}, [&](NodeContext&) {
        t_fails = false;
        ++ran;
      });
    }
    const Plan plan = graph.Compile(eng);
    for (int i = 1; i <= 5; ++i) {
      HeldOp holds = HoldWrite(eng, held);
      engine::Run run = plan.Start();
      run.Wait();
      EXPECT_EQ(ran, 5 * i);
      holds.Release();
      eng.WaitAll();
    }
  }
}

TEST(PlanNoMemoryTest, ANodeOnADeviceThatCannotBeHandedOverFailsAndTheRunEnds) {
  for (const Policy policy : {Policy::kThreaded, Policy::kInline}) {
    Engine eng(OnDevice(1));
    std::atomic<bool> refuse{true};
    std::atomic<int> ran{0};
    Graph graph;
    const NodeId first = graph.Add({.name = "first", .outputs = 1}, [&](NodeContext& ctx) {
      ctx.Return(0, 1);
      if (refuse) t_fails = true;
    });
    for (int i = 0; i < 500; ++i) {
      const NodeId host =
          graph.Add({.name = "host", .inputs = {first[0]}, .outputs = 1}, [](NodeContext& ctx) { ctx.Return(0, 1); });
      graph.Add({.name = "device", .inputs = {host[0]}, .place = Gpu(0)}, [&](NodeContext&) { ++ran; });
    }
    const Plan plan = graph.Compile(eng);
    for (const bool refused : {true, false}) {
      refuse = refused;
      ran = 0;
      engine::Run run = plan.Start({}, {.policy = policy});
      EXPECT_EQ(Ended(std::move(run)), !refused);
      GiveMemoryAgain(eng);
      EXPECT_EQ(ran == 500, !refused);
    }
  }
}

// Teams of several threads, invitations, turns that end, costs that are told to a model: memory is refused at random to all but
// this thread.
TEST(PlanNoMemoryTest, ATeamThatIsRefusedMemoryEndsItsRuns) {
  t_exempt = true;
  for (const auto& [one_in, policy] : {std::pair(2u, Policy::kThreaded),
                                       {20u, Policy::kThreaded},
                                       {2u, Policy::kCostModel},
                                       {20u, Policy::kCostModel}}) {
    EngineOptions o = Quiet(4);
    o.policy = policy;
    o.start_step = 1;
    o.stop_step = 3;
    o.io_threads = 2;
    Engine eng(o);
    const Var other = eng.NewVar("other");
    Graph graph;
    std::vector<ValueId> made;
    for (int i = 0; i < 60; ++i) {
      NodeDesc desc{.name = "node", .outputs = 1};
      if (i % 7 == 3) desc.place = Io();
      if (i >= 4) desc.inputs = {made[static_cast<size_t>(i) - 4]};
      made.push_back(graph.Add(desc, [](NodeContext& ctx) {
        const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(20);
        while (std::chrono::steady_clock::now() < until) {
        }
        ctx.Return(0, 1);
      })[0]);
    }
    const Plan plan = graph.Compile(eng);
    for (int i = 0; i < 200; ++i) {
      g_one_in = one_in;
      for (int k = 0; k < 20; ++k) eng.Push({.updates = {other}}, [] {});
      Ended(plan.Start());
      g_one_in = 0;
    }
    EXPECT_TRUE(Ended(plan.Start()));
    try {
      eng.WaitAll();
    } catch (const OpError&) {
    }
  }
  t_exempt = false;
}

}  // namespace
}  // namespace engine::test
