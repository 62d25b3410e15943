// Trace: every op that ran or was skipped while it was on, with its thread and its times. It changes nothing.
#include <barrier>

#include "support/engine_test.h"
#include "support/odd_locale.h"

namespace engine::test {
namespace {

WITH_ALL_WORKERS(TraceTest);

TEST_P(TraceTest, HoldsEachOpOnceWithItsThreadAndTimes) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  eng.Push({.name = "before"}, [] {});
  eng.WaitAll();
  eng.StartTrace();
  for (int i = 0; i < 20; ++i) eng.Push({.name = "work", .updates = {a}}, [] {});
  eng.Push({.name = "io", .updates = {a}, .place = Io()}, [] {});
  eng.Push({.name = "bad", .writes = {b}}, [] { throw 1; });
  eng.Push({.name = "skipped", .reads = {b}}, [] {});
  eng.PushAsync({.name = "async", .updates = {a}}, [](RunContext&, Completion done) { done(); });
  EXPECT_THROW(eng.WaitAll(), OpError);
  eng.Stop();  // the body of an asynchronous op may outlast the op, and is recorded when it ends
  eng.Start();
  const std::vector<TraceEvent> events = eng.StopTrace().events;
  eng.Push({.name = "after"}, [] {});
  eng.WaitAll();
  int work = 0, others = 0;
  for (const TraceEvent& e : events) {
    const std::string name = e.name, thread = e.thread;
    EXPECT_LE(0, e.begin_ns);
    EXPECT_LE(e.begin_ns, e.end_ns);
    EXPECT_EQ(e.skipped, name == "skipped") << name;
    if (name == "io") {
      EXPECT_EQ(thread.substr(0, 3), "io/");
    } else {
      EXPECT_EQ(thread.substr(0, 3), workers() ? "cpu" : "cal") << name;
    }
    if (name == "async") continue;  // its body may return, and be recorded, after its completion has let us go on
    ++(name == "work" ? work : others);
  }
  EXPECT_EQ(work, 20);
  EXPECT_EQ(others, 3);
}

TEST_P(TraceTest, OrderedOpsDoNotOverlap) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  eng.StartTrace();
  for (int i = 0; i < 200; ++i) eng.Push({.name = "step", .updates = {a}}, [] {});
  eng.WaitAll();
  std::vector<TraceEvent> events = eng.StopTrace().events;
  ASSERT_EQ(events.size(), 200u);
  std::sort(events.begin(), events.end(), [](const auto& x, const auto& y) { return x.begin_ns < y.begin_ns; });
  for (size_t i = 1; i < events.size(); ++i) EXPECT_LE(events[i - 1].end_ns, events[i].begin_ns);
}

TEST_P(TraceTest, MayBeStartedAgainAndWhileOpsRun) {
  EngineOptions options = Quiet(workers());
  options.max_pending = 1000;  // else each wait may find a multiple of what the one before found
  Engine eng(options);
  Var a = eng.NewVar("a");
  std::atomic<bool> stop{false};
  std::thread pusher([&] {
    while (!stop) eng.Push({.name = "step", .updates = {a}}, [] {});
  });
  for (int i = 0; i < 20; ++i) {
    eng.StartTrace();
    eng.WaitAll();
    eng.StopTrace();
  }
  stop = true;
  pusher.join();
  eng.WaitAll();
  eng.StartTrace();
  EXPECT_TRUE(eng.StopTrace().events.empty());
}

const TraceEvent& Named(const Trace& trace, std::string_view name) {
  const auto found =
      std::find_if(trace.events.begin(), trace.events.end(), [&](const auto& e) { return e.name == name; });
  EXPECT_NE(found, trace.events.end()) << name;
  return *found;
}

TEST_P(TraceTest, AnOpNamesTheOpsThatItCameBehind) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b"), c = eng.NewVar("c");
  eng.StartTrace();
  eng.Push({.name = "top", .writes = {a}}, [] {});
  eng.Push({.name = "left", .reads = {a}, .writes = {b}}, [] {});
  eng.Push({.name = "right", .reads = {a}, .updates = {c}}, [] {});
  eng.Push({.name = "bottom", .reads = {b, c}, .writes = {a}}, [] {});
  eng.WaitAll();
  const Trace trace = eng.StopTrace();
  using Ops = std::vector<uint64_t>;
  const auto top = Named(trace, "top").op, left = Named(trace, "left").op, right = Named(trace, "right").op;
  EXPECT_EQ(Named(trace, "top").after, Ops());
  EXPECT_EQ(Named(trace, "left").after, Ops{top});
  EXPECT_EQ(Named(trace, "right").after, Ops{top});
  EXPECT_EQ(Named(trace, "bottom").after, (Ops{std::min(left, right), std::max(left, right)}));
  for (const TraceEvent& e : trace.events) {
    EXPECT_LE(0, e.pushed_ns);
    EXPECT_LE(e.pushed_ns, e.ready_ns);
    EXPECT_LE(e.ready_ns, e.begin_ns);
    EXPECT_EQ(std::string(e.pusher), "caller");
    EXPECT_EQ(e.settled_ns, -1);
    for (uint64_t before : e.after) EXPECT_LE(trace.events[before].end_ns, e.begin_ns);
  }
  ASSERT_EQ(Named(trace, "left").uses.size(), 2u);
}

TEST_P(TraceTest, CountsOpsThatHaveNotRun) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  HeldOp held = eng.PushHeld({.name = "held", .writes = {a}}, [] {});
  eng.StartTrace();
  eng.Push({.name = "behind", .reads = {a}}, [] {});
  const Trace trace = eng.StopTrace();
  EXPECT_EQ(trace.pending, 1u);
  EXPECT_TRUE(trace.events.empty());
  held.Release();
  eng.WaitAll();
}

TEST_P(TraceTest, HoldsAnOpThatEndsBeforeItsBody) {
  if (workers() == 0) GTEST_SKIP() << "the body would run on the thread that waits";
  Gate gate;  // outlives the engine, which waits for the bodies
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  eng.StartTrace();
  eng.Push({.name = "early", .writes = {a}}, [&](RunContext& ctx) {
    ctx.Defer()();
    gate.Wait();
  });
  eng.PushAsync({.name = "asynchronous", .updates = {a}}, [&](RunContext&, Completion done) {
    done();
    gate.Wait();
  });
  if (workers() == 1) gate.Open();  // else the second op would wait for the first one's body
  eng.Wait(a);
  const Trace trace = eng.StopTrace();
  gate.Open();
  ASSERT_EQ(trace.events.size(), 2u);
  EXPECT_EQ(std::string(trace.events[0].name), "early");
  EXPECT_EQ(std::string(trace.events[1].name), "asynchronous");
}

// Else the waits of the whole process would be noted for it until there is no room for any.
TEST_P(TraceTest, AnEngineThatGoesEndsItsTrace) {
  const uint32_t before = detail::g_traces;
  {
    Engine eng(Quiet(workers()));
    eng.StartTrace();
    EXPECT_EQ(detail::g_traces, before + 1);
  }
  EXPECT_EQ(detail::g_traces, before);
}

TEST_P(TraceTest, AWaitForAVarIsNamed) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("awaited");
  HeldOp held = eng.PushHeld({.name = "held", .writes = {a}}, [] {});
  eng.StartTrace();
  EXPECT_FALSE(eng.WaitFor(a, std::chrono::milliseconds(1)));
  const Trace trace = eng.StopTrace();
  ASSERT_FALSE(trace.waits.empty());
  EXPECT_EQ(trace.waits[0].cause, WaitCause::kVar);
  EXPECT_EQ(std::string(trace.waits[0].name), "awaited");
  EXPECT_EQ(std::string(trace.waits[0].thread), "caller");
  held.Release();
  eng.WaitAll();
  eng.StartTrace();
  EXPECT_TRUE(eng.StopTrace().waits.empty());  // waits of earlier traces are gone
}

TEST(TraceJsonTest, OverlappingSlicesOfAThreadGoToTracksOfTheirOwn) {
  const std::string json = ChromeTraceJson({.events = {{"waits", "cpu/0", 0, 100, 0, false},
                                                       {"inside", "cpu/0", 10, 20, 1, false},
                                                       {"stand-in's", "cpu/0", 50, 150, 2, false}}});
  EXPECT_TRUE(Has(json, "{\"name\":\"cpu/0\"}"));
  EXPECT_TRUE(Has(json, "{\"name\":\"cpu/0 +1\"}"));
  EXPECT_FALSE(Has(json, "{\"name\":\"cpu/0 +2\"}"));
}

TEST(TraceJsonTest, ADependencyIsAFlow) {
  const std::string json = ChromeTraceJson({.events = {{"first", "cpu/0", 0, 1000, 0, false},
                                                       {.name = "second",
                                                        .thread = "cpu/1",
                                                        .begin_ns = 2000,
                                                        .end_ns = 3000,
                                                        .op = 1,
                                                        .skipped = false,
                                                        .after = {0}}}});
  EXPECT_TRUE(Has(json, "{\"ph\":\"s\",\"pid\":1,\"tid\":1,\"ts\":0.000,\"id\":1"));
  EXPECT_TRUE(Has(json, "{\"ph\":\"f\",\"pid\":1,\"tid\":2,\"ts\":2.000,\"id\":1"));
  EXPECT_TRUE(Has(json, "\"after\":[0]"));
}

TEST(TraceJsonTest, IsWellFormedAndEscapesNames) {
  const std::string json = ChromeTraceJson({.events = {{"plain", "cpu/0", 1000, 3000, 1, false},
                                                       {"with \"quotes\" and \\ and \n", "io/1", 0, 10, 2, true}}});
  EXPECT_TRUE(Has(json, "\"plain\""));
  EXPECT_TRUE(Has(json, "cpu/0"));
  EXPECT_TRUE(Has(json, "with \\\"quotes\\\" and \\\\ and "));
  EXPECT_EQ(json.find('\n' + std::string("\",")), json.npos);
  int depth = 0;
  bool text = false;
  for (size_t i = 0; i < json.size(); ++i) {
    if (text && json[i] == '\\') {
      ++i;
    } else if (json[i] == '"') {
      text = !text;
    } else if (!text) {
      depth += json[i] == '{' || json[i] == '[';
      depth -= json[i] == '}' || json[i] == ']';
      EXPECT_GE(depth, 0);
    }
  }
  EXPECT_FALSE(text);
  EXPECT_EQ(depth, 0);
}

TEST(TraceJsonTest, ATraceMayOutliveItsEngine) {
  Trace trace;
  {
    Engine eng(Quiet(1));
    eng.StartTrace();
    Var a = eng.NewVar("a");
    eng.Push({.name = "op", .writes = {a}}, [] {});
    eng.Push({.name = "behind", .updates = {a}, .place = Io()}, [] {});
    eng.WaitAll();
    trace = eng.StopTrace();
  }
  Engine another(Quiet(1));  // where the first one was
  const std::string json = ChromeTraceJson(trace);
  EXPECT_TRUE(Has(json, "cpu/0"));
  EXPECT_TRUE(Has(json, "io/0"));
}

// Each that has begun is counted among the process's until it ends: while there is one, all waits are logged.
TEST(TraceStartTest, ManyThreadsMayStartAndStopOne) {
  Engine eng(Quiet(1));
  std::barrier together(2);
  const auto starts = [&] {
    for (int i = 0; i < 500; ++i) {
      together.arrive_and_wait();
      eng.StartTrace();
      together.arrive_and_wait();
      (void)eng.StopTrace();
    }
  };
  std::thread other(starts);
  starts();
  other.join();
  (void)eng.StopTrace();
  EXPECT_EQ(detail::g_traces.load(), 0u);
}

TEST(TraceJsonTest, IsUtf8WhateverTheNames) {
  const auto name = [](const char* text) { return ChromeTraceJson({.events = {{text, "cpu/0", 0, 1, 1, false}}}); };
  EXPECT_TRUE(Has(name("caf\xc3\xa9 \xe6\xbc\xa2 \xf0\x9f\x98\x80"), "caf\xc3\xa9 \xe6\xbc\xa2 \xf0\x9f\x98\x80"));
  EXPECT_TRUE(Has(name("a\xff\xfez"), "a\\ufffd\\ufffdz"));
  EXPECT_TRUE(Has(name("cut \xe6\xbc"), "cut \\ufffd\\ufffd\""));
  EXPECT_TRUE(Has(name("surrogate \xed\xa0\x80"), "surrogate \\ufffd\\ufffd\\ufffd\""));
  EXPECT_TRUE(Has(name("overlong \xc0\xaf"), "overlong \\ufffd\\ufffd\""));
}

TEST(TraceJsonTest, IsTheSameInEveryLocale) {
  const Trace trace = {.events = {{"op", "cpu/0", 1'234'567'890, 9'999'999'999, 1, false}}};
  const std::string json = ChromeTraceJson(trace);
  const OddLocale odd;
  EXPECT_EQ(ChromeTraceJson(trace), json);
}

}  // namespace
}  // namespace engine::test
