// Capture: what is pushed to it is what a graph then has.
#include "engine/plan.h"
#include "support/engine_test.h"

namespace engine::test {
namespace {

TEST(CaptureTest, RecordsWhatAnOpSays) {
  Engine eng(Quiet(1));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  Graph graph;
  Capture capture(graph);
  CancelScope scope;
  capture.Push({.name = "sync", .reads = {a}, .writes = {b}, .place = CopyIn(1), .priority = -1, .run_always = true},
               [] {});
  {
    const auto guard = scope.Enter();
    capture.PushAsync({.name = "async", .updates = {a}}, [](RunContext&, Completion done) { done(); });
  }
  ASSERT_EQ(graph.nodes().size(), 2u);
  const Graph::Node &sync = graph.nodes()[0], &async = graph.nodes()[1];
  EXPECT_EQ(sync.effects, (std::vector<Effect>{{a, AccessMode::kRead}, {b, AccessMode::kWrite}}));
  EXPECT_EQ(sync.place.kind, Placement::Kind::kCopyIn);
  EXPECT_EQ(sync.priority, -1);
  EXPECT_TRUE(sync.run_always);
  EXPECT_FALSE(sync.cancelled);
  EXPECT_TRUE(async.async);
  EXPECT_TRUE(async.cancelled);
  EXPECT_EQ(graph.Edges(), (std::vector<Graph::Edge>{{0, 1, Graph::Edge::Kind::kVar}}));
}

TEST(CaptureTest, BodiesLearnTheirNameVersionAndCancel) {
  Engine eng(Quiet(2));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  std::string name, foreign;
  uint64_t version = 0;
  bool cancelled = true;
  Graph graph;
  Capture(graph).Push({.name = "body", .updates = {a}}, [&](RunContext& ctx) {
    name = ctx.name();
    version = ctx.version(a);
    cancelled = ctx.cancelled();
    foreign = RefusalOf([&] { ctx.version(b); });
  });
  const Plan plan = graph.Compile(eng);
  plan.Start();
  plan.Start().Wait();
  EXPECT_EQ(name, "body");
  EXPECT_EQ(version, 2u);
  EXPECT_FALSE(cancelled);
  EXPECT_TRUE(Has(foreign, "'b'"));
}

TEST(CaptureTest, KernelsAreDestroyedWithTheLastPlan) {
  auto token = std::make_shared<int>(1);
  Engine eng(Quiet(2));
  Plan plan;
  {
    Graph graph;
    Capture(graph).Push({.name = "n"}, [token] {});
    plan = graph.Compile(eng);
  }
  EXPECT_EQ(token.use_count(), 2);
  plan.Start().Wait();
  plan = Plan();
  while (token.use_count() > 1)
    std::this_thread::yield();  // the worker that ended the run may have yet to let go of it
}

}  // namespace
}  // namespace engine::test
