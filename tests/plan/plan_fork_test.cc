// A fork inside a node of a plan. The child goes on in the node and returns from it: what is behind and beside is the parent's.
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

}  // namespace
}  // namespace engine::test
