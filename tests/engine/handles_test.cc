// Contract 2: what every public call says of a handle that is empty, moved from, deleted, or of another engine, and after the
// engine's shutdown. UsageError, a text, and nothing changed.
#include <memory>

#include "engine/await.h"
#include "engine/bulk.h"
#include "engine/comm.h"
#include "engine/data.h"
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
    {"TryWait", [](Engine& e, Var& v) { e.TryWait(v); }},
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

// The message says which call it was, and where.
TEST_P(HandlesTest, NamesTheCallAndItsLine) {
  Engine eng(OnDevice(workers()));
  const auto here = [](const char* call, int line) {
    return std::string(call) + " at " + __FILE__ + ":" + std::to_string(line) + " names a null Var";
  };
  Var null, gone = eng.NewVar("gone"), left = gone;
  EXPECT_TRUE(Has(RefusalOf([&] { eng.Wait(null); }), here("a wait", __LINE__)));
  EXPECT_TRUE(Has(RefusalOf([&] { eng.Delete(null); }), here("Delete", __LINE__)));
  EXPECT_TRUE(Has(RefusalOf([&] { (void)eng.Settled(null); }), here("Settled", __LINE__)));
  EXPECT_TRUE(Has(RefusalOf([&] { eng.ClearError(null); }), here("ClearError", __LINE__)));
  EXPECT_TRUE(Has(RefusalOf([&] { eng.Delete(null, {}); }), "Delete names a null Var"));  // as from C
  eng.Delete(gone);
  EXPECT_TRUE(Has(RefusalOf([&] { eng.Delete(left); }), "names Var 'gone', which was deleted already"));
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

// Settled looks and registers nothing, so of a deleted Var it tells what its writes left.
TEST_P(HandlesTest, OfVarsThatAreLookedAt) {
  Engine eng(OnDevice(workers())), other(Quiet(1));
  Var empty, moved = eng.NewVar("moved"), there = std::move(moved), foreign = other.NewVar("foreign");
  EXPECT_TRUE(Has(RefusalOf([&] { (void)eng.Settled(empty); }), "null Var"));
  EXPECT_TRUE(Has(RefusalOf([&] { (void)eng.Settled(moved); }), "null Var"));  // NOLINT: moved from on purpose
  EXPECT_TRUE(Has(RefusalOf([&] { (void)eng.Settled(foreign); }), "another engine"));
  Var deleted = eng.NewVar("deleted"), left = deleted;
  HeldOp held = HoldWrite(eng, deleted);
  EXPECT_FALSE(eng.Settled(left));
  eng.Delete(deleted);
  EXPECT_FALSE(eng.Settled(left));
  held.Release();
  eng.WaitAll();
  EXPECT_TRUE(eng.Settled(left));
  EXPECT_TRUE(eng.Settled(there));
  eng.Shutdown();
  EXPECT_TRUE(eng.Settled(there));
  EXPECT_TRUE(eng.TryWait(there));
}

using IntData = Data<int>;
using DataCall = Call<Engine, IntData>;
const DataCall kWithData[] = {
    {"reads", [](Engine& e, IntData& d) { e.Push(reads(d), [](const int&) {}); }},
    {"updates", [](Engine& e, IntData& d) { e.Push(updates(d), [](int&) {}); }},
    {"writes", [](Engine& e, IntData& d) { e.Push(writes(d), [](int&) {}); }},
    {"Wait", [](Engine& e, IntData& d) { e.Wait(d); }},
};

TEST_P(HandlesTest, OfData) {
  Engine eng(Quiet(workers())), other(Quiet(1));
  IntData empty, moved(eng, "moved"), there = std::move(moved), foreign(other, "foreign"), deleted(eng, "deleted");
  IntData of_deleted = deleted;
  eng.Delete(deleted);
  for (const DataCall& one : kWithData) {
    EXPECT_TRUE(Has(RefusalOf([&] { one.call(eng, empty); }), "null Var")) << one.name;
    EXPECT_TRUE(Has(RefusalOf([&] { one.call(eng, moved); }), "null Var")) << one.name;  // NOLINT
    EXPECT_TRUE(Has(RefusalOf([&] { one.call(eng, foreign); }), "another engine")) << one.name;
    EXPECT_TRUE(Has(RefusalOf([&] { one.call(eng, of_deleted); }), "deleted")) << one.name;
    one.call(eng, there);
  }
  eng.Shutdown();
  for (const DataCall& one : kWithData) {
    if (std::string_view(one.name) == "Wait") continue;
    EXPECT_TRUE(Has(RefusalOf([&] { one.call(eng, there); }), "after shutdown")) << one.name;
  }
  EXPECT_EQ(eng.Wait(there), 0);
  EXPECT_TRUE(Has(RefusalOf([&] { IntData late(eng, "late"); }), "after shutdown"));
}

// A coroutine that starts at once, and what its co_await threw.
struct Awaiting {
  struct promise_type {
    std::shared_ptr<Slot<std::exception_ptr>> over = std::make_shared<Slot<std::exception_ptr>>();
    Awaiting get_return_object() { return {over}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() { over->Put(nullptr); }
    void unhandled_exception() { over->Put(std::current_exception()); }
  };
  std::shared_ptr<Slot<std::exception_ptr>> over;
  void Rethrow() const {
    if (const std::exception_ptr error = over->Take()) std::rethrow_exception(error);
  }
};
Awaiting AwaitVar(Var var) { co_await var; }
Awaiting AwaitData(IntData data) { co_await data; }
Awaiting AwaitAtIo(Var var) { co_await ResumeOn(Io(), var); }

TEST_P(HandlesTest, OfWhatACoroutineAwaits) {
  Engine eng(Quiet(workers())), other(Quiet(1));
  const auto refused = [&](const Var& var, const IntData& data, const char* text) {
    EXPECT_TRUE(Has(RefusalOf([&] { AwaitVar(var).Rethrow(); }), text));
    EXPECT_TRUE(Has(RefusalOf([&] { AwaitData(data).Rethrow(); }), text));
    EXPECT_TRUE(Has(RefusalOf([&] { AwaitAtIo(var).Rethrow(); }), text));
  };
  Var moved = eng.NewVar("moved"), there = std::move(moved);
  refused(Var(), IntData(), "null Var");
  refused(moved, IntData(), "null Var");  // NOLINT: moved from on purpose
  IntData deleted(eng, "deleted");
  const IntData of_deleted = deleted;
  eng.Delete(deleted);
  refused(of_deleted, of_deleted, "deleted");
  AwaitVar(other.NewVar("of another engine")).Rethrow();  // it names its engine itself
  const Awaiting pending = AwaitVar(there);
  eng.WaitAll();
  pending.Rethrow();
  const IntData late(eng, "late");
  eng.Shutdown();
  refused(there, late, "after shutdown");
}

TEST_P(HandlesTest, OfTheVarsOfARun) {
  Engine eng(Quiet(workers())), other(Quiet(1));
  Graph g;
  const ValueId in = g.Input<int>("in");
  const NodeId node =
      g.Add({.name = "n", .inputs = {in}, .outputs = 1}, [](NodeContext& ctx) { ctx.Return(0, ctx.In<int>(0)); });
  g.Output(node[0]);
  const Plan plan = g.Compile(eng);
  const auto start = [&](std::span<const Var> inputs, std::span<const Var> outputs) {
    Value values[] = {1};
    RunOptions options;
    options.inputs = inputs;
    options.outputs = outputs;
    plan.Start(values, options).Wait();
  };
  Var moved = eng.NewVar("moved"), there = std::move(moved), deleted = eng.NewVar("deleted");
  const Var left = deleted, foreign = other.NewVar("foreign"), null;
  eng.Delete(deleted);
  const auto refused = [&](const Var& var, const char* text) {
    EXPECT_TRUE(Has(RefusalOf([&] { start({}, std::span(&var, 1)); }), text));
    if (var) {
      EXPECT_TRUE(Has(RefusalOf([&] { start(std::span(&var, 1), {}); }), text));
    }
  };
  refused(null, "null Var");
  refused(moved, "null Var");  // NOLINT: moved from on purpose
  refused(foreign, "another engine");
  refused(left, "deleted");
  const Var two[] = {there, eng.NewVar("second")};
  EXPECT_TRUE(Has(RefusalOf([&] { start({}, two); }), "RunOptions::outputs has 2"));
  EXPECT_TRUE(Has(RefusalOf([&] { start(two, {}); }), "RunOptions::inputs has 2"));
  EXPECT_TRUE(Has(RefusalOf([&] { start(std::span(&there, 1), std::span(&there, 1)); }), "twice"));
  start(std::span(&null, 1), {});  // a null Var among the inputs: that input is there
  start({}, std::span(&there, 1));
  EXPECT_EQ(there.version(), 1u);
  eng.Shutdown();
  EXPECT_TRUE(Has(RefusalOf([&] { start({}, std::span(&there, 1)); }), "after shutdown"));
}

TEST_P(HandlesTest, OfCommunicators) {
  Engine eng(OnDevice(workers())), other(OnDevice(1));
  const CommunicatorOptions alone{.id = NewCommunicatorId("software")};
  Communicator moved(eng, alone), there = std::move(moved);
  const Call<Communicator> calls[] = {
      {"Push", [&](Communicator& c) { c.Push(eng, {}, {}); }}, {"Abort", [](Communicator& c) { c.Abort("why"); }},
      {"rank", [](Communicator& c) { (void)c.rank(); }},       {"size", [](Communicator& c) { (void)c.size(); }},
      {"name", [](Communicator& c) { (void)c.name(); }},       {"place", [](Communicator& c) { (void)c.place(); }},
      {"var", [](Communicator& c) { (void)c.var(); }},         {"stats", [](Communicator& c) { (void)c.stats(); }},
  };
  for (const auto& one : calls)
    EXPECT_TRUE(Has(RefusalOf([&] { one.call(moved); }), "moved from")) << one.name;  // NOLINT
  float x = 1;
  const auto push = [&](Submitter& to, std::span<const Var> writes) {
    there.Push(to, {.name = "sum", .writes = writes}, {Collective::AllReduce(&x, &x, 1)});
  };
  Var deleted = eng.NewVar("deleted");
  const Var left = deleted, null, foreign = other.NewVar("foreign");
  eng.Delete(deleted);
  EXPECT_TRUE(Has(RefusalOf([&] { push(eng, std::span(&null, 1)); }), "null Var"));
  EXPECT_TRUE(Has(RefusalOf([&] { push(eng, std::span(&foreign, 1)); }), "another engine"));
  EXPECT_TRUE(Has(RefusalOf([&] { push(eng, std::span(&left, 1)); }), "deleted"));
  EXPECT_THROW(push(other, {}), UsageError);
  eng.Shutdown();
  EXPECT_TRUE(Has(RefusalOf([&] { push(eng, {}); }), "after shutdown"));
  there.Abort("the engine is closed");  // there is nothing to do
  EXPECT_EQ(there.rank(), 0);
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
