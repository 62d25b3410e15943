// Contract 2: what every public call says of a handle that is empty, moved from, deleted, or of another engine, and after the
// engine's shutdown. UsageError, a text, and nothing changed.
#include <memory>

#include "engine/bulk.h"
#include "engine/plan.h"
#include "engine/spi/cost_model.h"
#include "support/on_device.h"

namespace engine::test {
namespace {

WITH_ALL_WORKERS(HandlesTest);

template <class... Args>
struct Call {
  const char* name;
  std::function<void(Args&...)> call;
};

using VarCall = Call<Engine, Var>;
const VarCall kPushes[] = {
    {"Push", [](Engine& e, Var& v) { e.Push({.reads = {v}}, [] {}); }},
    {"PushAsync",
     [](Engine& e, Var& v) { e.PushAsync({.updates = {v}}, [](RunContext&, Completion done) { done(); }); }},
    {"TryPush", [](Engine& e, Var& v) { e.TryPush({.writes = {v}}, [] {}); }},
    {"PushHeld", [](Engine& e, Var& v) { HeldOp held = e.PushHeld({.writes = {v}}, [] {}); }},
    {"push in a Bulk",
     [](Engine& e, Var& v) {
       Bulk bulk(e);
       e.Push({.updates = {v}}, [] {});
     }},
    {"push to a device in a Bulk",
     [](Engine& e, Var& v) {
       Bulk bulk(e);
       e.Push({.updates = {v}, .place = Gpu(0)}, [] {});
     }},
    {"HeldOps::Push", [](Engine& e, Var& v) { HeldOps(e).Push({.updates = {v}, .place = Gpu(0)}, [] {}); }},
    {"an Operator's push", [](Engine& e, Var& v) { e.Push(e.NewOperator({.updates = {v}}, [] {})); }},
    {"ClearError", [](Engine& e, Var& v) { e.ClearError(v); }},
};
const VarCall kWaits[] = {
    {"Wait", [](Engine& e, Var& v) { e.Wait(v); }},
    {"WaitFor", [](Engine& e, Var& v) { e.WaitFor(v, 1ms); }},
    {"WaitToWrite", [](Engine& e, Var& v) { e.WaitToWrite(v); }},
};
const VarCall kRecorded[] = {
    {"a plan's run",
     [](Engine& e, Var& v) {
       Graph g;
       g.Add({.updates = {v}}, [] {});
       g.Compile(e).Start().Wait();
     }},
    {"Delete", [](Engine& e, Var& v) { e.Delete(v); }},
};

void ExpectRefused(Engine& eng, Var& var, const char* text) {
  const auto check = [&](std::span<const VarCall> calls) {
    for (const VarCall& one : calls)
      EXPECT_TRUE(Has(RefusalOf([&] { one.call(eng, var); }), text)) << "from " << one.name;
  };
  check(kPushes);
  check(kWaits);
  check(kRecorded);
}

TEST_P(HandlesTest, OfVarsThatAreEmptyOrMovedFrom) {
  Engine eng(OnDevice(workers()));
  Var empty, moved = eng.NewVar("moved"), there = std::move(moved);
  ExpectRefused(eng, empty, "null Var");
  ExpectRefused(eng, moved, "null Var");  // NOLINT: moved from on purpose
  EXPECT_EQ(empty.version(), 0u);
  EXPECT_STREQ(empty.name(), "");
  eng.WaitAll();
  EXPECT_EQ(there.version(), 0u);
}

TEST_P(HandlesTest, OfVarsOfAnotherEngine) {
  Engine eng(OnDevice(workers())), other(Quiet(1));
  Var foreign = other.NewVar("foreign");
  ExpectRefused(eng, foreign, "another engine");
  EXPECT_EQ(foreign.version(), 0u);
}

TEST_P(HandlesTest, OfVarsThatWereDeleted) {
  Engine eng(OnDevice(workers()));
  Var idle = eng.NewVar("idle"), other = idle;
  eng.Delete(idle);
  ExpectRefused(eng, other, "deleted");
  Var busy = eng.NewVar("busy"), other_busy = busy;
  HeldOp held = HoldWrite(eng, busy);
  eng.Delete(busy);
  ExpectRefused(eng, other_busy, "deleted");
  held.Release();
  eng.WaitAll();
  EXPECT_EQ(other_busy.version(), 1u);
}

TEST_P(HandlesTest, OfVarsAfterTheShutdown) {
  Engine eng(OnDevice(workers()));
  Var v = eng.NewVar("v");
  eng.Push({.writes = {v}}, [] {});
  eng.Shutdown();
  for (const VarCall& one : kPushes)
    EXPECT_TRUE(Has(RefusalOf([&] { one.call(eng, v); }), "after shutdown")) << "from " << one.name;
  EXPECT_TRUE(Has(RefusalOf([&] { kRecorded[0].call(eng, v); }), "after shutdown"));
  EXPECT_TRUE(Has(RefusalOf([&] { (void)eng.NewVar(); }), "after shutdown"));
  for (const VarCall& one : kWaits) one.call(eng, v);  // everything has ended
  EXPECT_EQ(v.version(), 1u);
  eng.WaitAll();
  eng.Shutdown();
  (void)eng.stats();
  (void)eng.DescribePending();
  eng.Delete(v);
}

TEST_P(HandlesTest, OfPlansThatAreEmptyOrMovedFrom) {
  const Call<const Plan> calls[] = {
      {"Start", [](const Plan& p) { p.Start(); }},
      {"TryStart", [](const Plan& p) { p.TryStart(); }},
      {"With", [](const Plan& p) { (void)p.With({}); }},
      {"cost_model", [](const Plan& p) { (void)p.cost_model(); }},
      {"Explain", [](const Plan& p) { (void)Explain(p); }},
      {"graph", [](const Plan& p) { (void)p.graph(); }},
      {"options", [](const Plan& p) { (void)p.options(); }},
      {"tasks", [](const Plan& p) { (void)p.tasks(); }},
      {"edges", [](const Plan& p) { (void)p.edges(); }},
      {"counters", [](const Plan& p) { (void)p.counters(); }},
      {"frames", [](const Plan& p) { (void)p.frames(); }},
      {"Describe", [](const Plan& p) { (void)p.Describe(); }},
      {"Dot", [](const Plan& p) { (void)p.Dot(); }},
  };
  Engine eng(Quiet(workers()));
  Plan moved = Graph().Compile(eng), there = std::move(moved);
  for (const auto& one : calls) {
    EXPECT_TRUE(Has(RefusalOf([&] { one.call(Plan()); }), "empty Plan")) << one.name;
    EXPECT_TRUE(Has(RefusalOf([&] { one.call(moved); }), "empty Plan")) << one.name;  // NOLINT
    if (std::string_view(one.name) != "Start") one.call(there);
  }
  there.Start().Wait();
}

TEST_P(HandlesTest, OfRunsThatAreEmptyOrMovedFrom) {
  const Call<engine::Run> calls[] = {
      {"done", [](engine::Run& r) { (void)r.done(); }},
      {"var", [](engine::Run& r) { (void)r.var(); }},
      {"Wait", [](engine::Run& r) { r.Wait(); }},
      {"WaitFor", [](engine::Run& r) { r.WaitFor(1ms); }},
      {"Output", [](engine::Run& r) { (void)r.Output(0); }},
      {"OutputIf", [](engine::Run& r) { (void)r.OutputIf(0); }},
      {"Take", [](engine::Run& r) { (void)r.Take<int>(0); }},
  };
  Engine eng(Quiet(workers()));
  Plan plan = Graph().Compile(eng);
  engine::Run moved = plan.Start(), there = std::move(moved);
  there.Wait();
  for (const auto& one : calls) {
    engine::Run empty;
    EXPECT_TRUE(Has(RefusalOf([&] { one.call(empty); }), "empty Run")) << one.name;
    EXPECT_TRUE(Has(RefusalOf([&] { one.call(moved); }), "empty Run")) << one.name;  // NOLINT
  }
}

TEST_P(HandlesTest, OfOtherEmptyHandles) {
  Engine eng(Quiet(workers())), other(Quiet(1));
  EXPECT_TRUE(Has(RefusalOf([&] { eng.Push(Operator()); }), "empty Operator"));
  EXPECT_TRUE(Has(RefusalOf([&] { eng.Push(Operator(), 1); }), "empty Operator"));
  const Operator foreign = other.NewOperator({.name = "theirs"}, [] {});
  EXPECT_TRUE(Has(RefusalOf([&] { eng.Push(foreign); }), "another engine"));
  EXPECT_TRUE(Has(RefusalOf([&] { Completion()(); }), "empty Completion"));
  EXPECT_TRUE(Has(RefusalOf([&] { Completion().Fail(1); }), "empty Completion"));
  HeldOp held = eng.PushHeld({}, [] {}), there = std::move(held);
  held.Release();  // NOLINT: moved from; there is nothing to do
  HeldOp().Release();
  there.Release();
  Graph g, taken = std::move(g);
  EXPECT_TRUE(Has(RefusalOf([&] { g.Order({0, 0, 0}, {1, 0, 0}); }), "not of this graph"));  // NOLINT
  EXPECT_TRUE(Has(RefusalOf([&] { g.Output({}); }), "not of this graph"));
  EXPECT_TRUE(Has(RefusalOf([&] { g.Add({.name = "n", .inputs = {{7}}}, [] {}); }), "no value of this graph"));
  eng.WaitAll();
}

TEST_P(HandlesTest, OfACancelScopeThatWasMovedFrom) {
  Engine eng(Quiet(workers()));
  const Var a = eng.NewVar("a");
  CancelScope scope;
  CancelScope moved = std::move(scope);  // a copy: a scope cannot be without its flag
  eng.Push({.writes = {a}, .cancel = &scope}, [] {});
  eng.Wait(a);
  moved.Cancel();
  EXPECT_TRUE(scope.cancelled());
}

TEST_P(HandlesTest, OfPlacementsThatDoNotExist) {
  Engine eng(Quiet(workers()));
  Var v = eng.NewVar("v");
  for (const int kind : {7, 8, 99, 255}) {
    const Placement place{static_cast<Placement::Kind>(kind), 0};
    const std::vector<Var> writes{v};
    const OpDesc desc{.name = "lost", .writes = writes, .place = place};
    const auto refused = [&](auto call) {
      EXPECT_TRUE(Has(RefusalOf(call), "placement of kind " + std::to_string(kind)));
    };
    refused([&] { eng.Push(desc, [] {}); });
    refused([&] { eng.TryPush(desc, [] {}); });
    refused([&] { HeldOp held = eng.PushHeld(desc, [] {}); });
    refused([&] { (void)eng.NewOperator(desc, [] {}); });
    refused([&] {
      Bulk bulk(eng);
      eng.Push(desc, [] {});
    });
    refused([&] {
      Graph g;
      g.Add({.name = "lost", .writes = {v}, .place = place}, [] {});
      (void)g.Compile(eng);
    });
  }
  eng.WaitAll();
  EXPECT_EQ(v.version(), 0u);
}

TEST_P(HandlesTest, OfAGraphThatIsNestedInItself) {
  Graph g;
  const NodeId one = g.Add({.name = "one"}, [] {}), two = g.Add({.name = "two"}, [] {});
  g.Order(one, two);
  g.AddGraph(g, {});
  EXPECT_EQ(g.nodes().size(), 4u);
  EXPECT_EQ(g.Edges().size(), 2u);
}

}  // namespace
}  // namespace engine::test
