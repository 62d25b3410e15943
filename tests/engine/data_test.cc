// Data: an object with its Var, and pushes whose bodies are given what they name.
#include "engine/data.h"

#include <memory>
#include <vector>

#include "engine/bulk.h"
#include "support/engine_test.h"

namespace engine::test {
namespace {

WITH_ALL_WORKERS(DataTest);

// Says when it goes.
struct Tracked {
  explicit Tracked(bool* where) : gone(where) {}
  ~Tracked() { *gone = true; }
  bool* gone;
};

TEST_P(DataTest, BodiesAreGivenWhatTheyNameInTheOrderOfTheCall) {
  Engine eng(Quiet(workers()));
  Data<int> x(eng, "x", 2);
  Data<std::string> text(eng, "text", "ab");
  Data<std::vector<int>> out(eng, "out");
  eng.Push(writes(out), reads(x), updates(text), [](std::vector<int>& o, const int& n, std::string& t) {
    o.assign(static_cast<size_t>(n), 7);
    t += "c";
  });
  EXPECT_EQ(eng.Wait(out), (std::vector<int>{7, 7}));
  EXPECT_EQ(eng.Wait(text), "abc");
  EXPECT_EQ(out.version(), 1u);
  EXPECT_EQ(text.version(), 1u);
  EXPECT_EQ(x.version(), 0u);
}

TEST_P(DataTest, ARunContextMayStandFirstAndABareVarGivesNothing) {
  Engine eng(Quiet(workers()));
  Data<int> x(eng, "x", 1);
  Var ticket = eng.NewVar("ticket");
  std::string name;
  eng.Push({.name = "named"}, updates(ticket), updates(x), [&name](RunContext& ctx, int& n) {
    name = ctx.name();
    n = 5;
  });
  EXPECT_EQ(eng.Wait(x), 5);
  EXPECT_EQ(name, "named");
  EXPECT_EQ(ticket.version(), 1u);
}

TEST_P(DataTest, IsOrderedWithUntypedPushes) {
  Engine eng(Quiet(workers()));
  Data<int> x(eng, "x", 1);
  for (int i = 0; i < 50; ++i) {
    eng.Push(updates(x), [](int& n) { n = (n * 3) % 1009; });
    eng.Push({.updates = x}, [x] { x.object() += 1; });
  }
  int expected = 1;
  for (int i = 0; i < 50; ++i) expected = (expected * 3) % 1009 + 1;
  EXPECT_EQ(eng.Wait(x), expected);
}

TEST_P(DataTest, ErrorsPoisonWhatTheBodyWouldHaveWritten) {
  Engine eng(Quiet(workers()));
  Data<int> in(eng, "in"), out(eng, "out", 3);
  eng.Push({.name = "broken"}, writes(in), [](int&) { throw std::runtime_error("no file"); });
  const uint32_t line = __LINE__ - 1;
  eng.Push({.name = "skipped"}, reads(in), updates(out), [](const int&, int& o) { o = 0; });
  const OpError e = ErrorOf([&] { eng.Wait(out); });
  EXPECT_EQ(e.op(), "broken");
  EXPECT_EQ(e.site().line, line);
  EXPECT_TRUE(Has(e.site().file, "data_test.cc"));
  EXPECT_EQ(out.object(), 3);
  eng.ClearError(out);
  EXPECT_EQ(eng.Wait(out), 3);
}

TEST_P(DataTest, TheObjectLivesUntilTheLastOpThatNamesItHasEnded) {
  Engine eng(Quiet(workers()));
  bool gone = false, was_gone = true;
  Var gate = eng.NewVar("gate");
  HeldOp held = HoldWrite(eng, gate);
  {
    Data<Tracked> data(eng, "data", &gone);
    eng.Push(reads(gate), reads(data), [&](const Tracked& t) { was_gone = *t.gone; });
  }
  EXPECT_FALSE(gone);
  held.Release();
  eng.WaitAll();
  EXPECT_FALSE(was_gone);
  eng.Shutdown();
  EXPECT_TRUE(gone);
}

TEST_P(DataTest, TheObjectGoesWithItsLastHandleAndOutlivesTheEngine) {
  bool gone = false;
  Data<Tracked> kept;
  EXPECT_FALSE(kept);
  {
    Engine eng(Quiet(workers()));
    Data<Tracked> data(eng, "data", &gone);
    eng.Push(updates(data), [](Tracked&) {});
    kept = data;
    eng.Push(updates(kept), [](Tracked&) {});
  }
  EXPECT_FALSE(gone);
  EXPECT_EQ(kept.object().gone, &gone);
  kept = Data<Tracked>();
  EXPECT_TRUE(gone);
}

TEST_P(DataTest, ARefusedOrSkippedOpLetsGoOfTheObject) {
  Engine eng(Quiet(workers()));
  bool gone = false;
  {
    Data<Tracked> data(eng, "data", &gone);
    Data<Tracked> none;
    EXPECT_THROW(eng.Push(reads(data), writes(none), [](const Tracked&, Tracked&) {}), UsageError);
    Var bad = eng.NewVar("bad");
    Fail(eng, bad);
    eng.Push(reads(bad), reads(data), [](const Tracked&) { ADD_FAILURE() << "must be skipped"; });
    EXPECT_THROW(eng.WaitAll(), OpError);
  }
  eng.Shutdown();
  EXPECT_TRUE(gone);
}

TEST_P(DataTest, TypedPushesAreBulkedAndTried) {
  Engine eng(Quiet(workers()));
  Data<int> x(eng, "x", 0);
  {
    Bulk bulk(eng, 8);
    for (int i = 0; i < 20; ++i) bulk.Push(updates(x), [](int& n) { ++n; });
    EXPECT_TRUE(eng.TryPush({.name = "tried"}, updates(x), [](int& n) { ++n; }));
  }
  EXPECT_EQ(eng.Wait(x), 21);
}

TEST_P(DataTest, ManyThreadsShareOne) {
  Engine eng(Quiet(workers()));
  bool gone = false;
  Data<int> sum(eng, "sum", 0);
  {
    Data<Tracked> shared(eng, "shared", &gone);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&eng, shared, sum] {
        for (int i = 0; i < 200; ++i) {
          Data<Tracked> mine = shared;
          eng.Push(reads(mine), updates(sum), [](const Tracked& it, int& n) { n += *it.gone ? 1000 : 1; });
        }
      });
    for (std::thread& t : threads) t.join();
  }
  EXPECT_EQ(eng.Wait(sum), 800);
  eng.Shutdown();
  EXPECT_TRUE(gone);
}

TEST(DataRefusalTest, SetsBesideTypedNamesAreRefused) {
  Engine eng(Quiet(1));
  Data<int> x(eng, "x");
  Var v = eng.NewVar("v");
  const std::string text = RefusalOf([&] { eng.Push({.name = "both", .reads = {v}}, writes(x), [](int&) {}); });
  EXPECT_TRUE(Has(text, "'both'"));
  EXPECT_TRUE(Has(text, "reads(var)"));
  EXPECT_TRUE(Has(text, "data_test.cc"));
  EXPECT_EQ(eng.stats().pushed, 0u);
}

TEST(DataRefusalTest, ADataWithoutAnObjectIsRefusedAsANullVarIs) {
  Engine eng(Quiet(1));
  const std::string text = RefusalOf([&] { eng.Push({.name = "empty"}, reads(Data<int>()), [](const int&) {}); });
  EXPECT_TRUE(Has(text, "null Var"));
  EXPECT_TRUE(Has(text, "'empty'"));
  EXPECT_TRUE(Has(text, "data_test.cc"));
}

// A body that may change what it only reads is no body for it.
template <class F, class... Uses>
constexpr bool kTakes = detail::TypedBody<void (*)(const int&),
                                          detail::Use<int, AccessMode::kRead>>::Takes<std::tuple<const int&>>::kPlain &&
                        !std::is_invocable_v<void (*)(int&), const int&>;
static_assert(kTakes<void>);
static_assert(std::is_same_v<detail::Use<int, AccessMode::kRead>::Param, const int&>);
static_assert(std::is_same_v<detail::Use<int, AccessMode::kUpdate>::Param, int&>);
static_assert(sizeof(detail::DataPin<int>) == sizeof(void*));

}  // namespace
}  // namespace engine::test
