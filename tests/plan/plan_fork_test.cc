// A fork inside a node of a plan. The child goes on in the node and returns from it: what is behind and beside is the parent's.
#include <thread>

#include "engine/plan.h"
#include "support/child.h"
#include "support/engine_test.h"

namespace engine::test {
namespace {

class PlanForkTest : public WorkersTest {
 protected:
  void SetUp() override {
    if (const char* why = WhyNoForks()) GTEST_SKIP() << why;
  }

  // A run of a plan whose node `there` forks, among others of each kind. The last node is behind all of them.
  void Try(Placement there, bool async, RunOptions options) {
    const pid_t parent = getpid();
    const SharedCount ran;
    pid_t child = 0;
    {
      Engine eng(Quiet(workers()));
      const Var shared = eng.NewVar("shared");
      const auto count = [&] { ++*ran; };
      Graph graph;
      std::vector<NodeId> beside;
      for (int i = 0; i < 20; ++i) beside.push_back(graph.Add({.name = "beside"}, count));
      const auto forks = [&] {
        count();
        child = fork();
        if (child == 0) alarm(30);
      };
      const NodeId forking = async ? graph.AddAsync({.name = "forks", .updates = {shared}, .place = there},
                                                    [&](NodeContext&, Completion done) {
                                                      forks();
                                                      done();
                                                    })
                                   : graph.Add({.name = "forks", .updates = {shared}, .place = there}, forks);
      const NodeId last = graph.Add({.name = "last", .reads = {shared}}, count);
      for (const NodeId node : beside) graph.Order(node, last);
      for (const Placement place : {Cpu(), Io(), Cpu()}) {
        const NodeId behind = graph.Add({.name = "behind", .place = place}, count);
        graph.Order(forking, behind);
        graph.Order(behind, last);
      }
      const NodeId behind = graph.AddAsync({.name = "async behind"}, [&](NodeContext&, Completion done) {
        count();
        done();
      });
      graph.Order(forking, behind);
      graph.Order(behind, last);
      const Plan plan = graph.Compile(eng);
      try {
        plan.Start({}, options).Wait();
        eng.WaitAll();
      } catch (const OpError&) {
        if (getpid() == parent) throw;
      }
      if (getpid() != parent) _exit(0);  // this thread ran the node
    }
    EXPECT_TRUE(HowItEnded(child));
    EXPECT_EQ(*ran, 20 + 1 + 3 + 1 + 1);  // all of them once, in the parent
  }
};
INSTANTIATE_TEST_SUITE_P(Workers, PlanForkTest, testing::Values(0, 1, 2, 4, 8),
                         [](const auto& instance) { return std::to_string(instance.param); });

TEST_P(PlanForkTest, NoOtherNodeRunsInTheChild) {
  for (const Placement there : {Cpu(), Io()})
    for (const bool async : {false, true})
      for (const Policy policy : {Policy::kThreaded, Policy::kInline, Policy::kNaive})
        for (int i = 0; i < 5; ++i) {
          SCOPED_TRACE(testing::Message() << (there.kind == Placement::Kind::kIo ? "io" : "cpu")
                                          << (async ? ", async" : "") << ", policy " << static_cast<int>(policy));
          Try(there, async, {.policy = policy});
        }
}

// The thread of the loop is the parent's. The child returns from the node that forked, and finds the loop open.
TEST(PlanForkLoopTest, NoPieceOfAnotherThreadsLoopRunsInTheChild) {
  if (const char* why = WhyNoForks()) GTEST_SKIP() << why;
  const pid_t parent = getpid();
  for (int i = 0; i < 5; ++i) {
    const SharedCount pieces;
    std::atomic<bool> begun{false}, open{false}, forked{false};
    const auto wait_for = [](const std::atomic<bool>& flag) {  // for some seconds at most
      for (int n = 0; n < 10000 && !flag; ++n) std::this_thread::sleep_for(std::chrono::microseconds(100));
    };
    pid_t child = 0;
    {
      Engine eng(Quiet(2));
      Graph graph;
      // Long enough for a team.
      const NodeId before = graph.Add({.name = "before"}, [] {
        for (int n = 0; n < 200000; ++n) asm volatile("");
      });
      const NodeId wide = graph.Add({.name = "wide", .threads = 2}, [&](NodeContext& ctx) {
        wait_for(begun);  // so that the other thread does not come to help
        ctx.ParallelFor(8, 1, [&](size_t begin, size_t) {
          open = true;
          if (begin == 0) wait_for(forked);
          ++*pieces;
        });
      });
      const NodeId forks = graph.Add({.name = "forks"}, [&] {
        begun = true;
        wait_for(open);
        child = fork();
        if (child == 0) alarm(30);
        forked = true;
      });
      graph.Order(before, wide);
      graph.Order(before, forks);
      const Plan plan = graph.Compile(eng);
      try {
        plan.Start().Wait();
      } catch (const OpError&) {
        if (getpid() == parent) throw;
      }
      if (getpid() != parent) _exit(0);  // this thread ran the node
    }
    EXPECT_TRUE(HowItEnded(child));
    EXPECT_EQ(*pieces, 8);
  }
}

}  // namespace
}  // namespace engine::test
