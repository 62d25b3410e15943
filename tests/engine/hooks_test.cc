// The user's hooks: what they throw is told and changes nothing; they may push; what would wait for them is refused.
#include "support/engine_test.h"

namespace engine::test {
namespace {

WITH_ALL_WORKERS(HooksTest);

// Collects the refusals of calls that must be refused, one line each.
struct Refusals {
  template <class F>
  void Of(F&& call) {
    try {
      call();
      log.Add("was not refused");
    } catch (const UsageError& e) {
      log.Add(e.what());
    }
  }
  void OfStopStartShutdown(Engine& eng) {
    Of([&] { eng.Stop(); });
    Of([&] { eng.Start(); });
    Of([&] { eng.Shutdown(); });
  }
  bool AllSay(const std::string& text, size_t n) const {
    const auto lines = log.lines();
    return lines.size() == n &&
           std::all_of(lines.begin(), lines.end(), [&](const auto& l) { return bool(Has(l, text)); });
  }
  Log log;
};
constexpr const char* kWouldWait = "would wait for itself";

TEST_P(HooksTest, WorkersHooksThatThrowAreTold) {
  EngineOptions o = Quiet(workers());
  o.on_start = [](int) { throw std::runtime_error("no licence"); };
  o.on_end = [](int) { throw 5; };
  testing::internal::CaptureStderr();
  {
    Engine eng(o);
    Var a = eng.NewVar("a");
    for (int i = 0; i < 10; ++i) eng.Push({.updates = {a}}, [] {});
    eng.Wait(a);
    eng.Stop();
    eng.Start();
    eng.Push({.updates = {a}}, [] {});
    eng.Wait(a);
    EXPECT_EQ(a.version(), 11u);
  }
  const std::string text = testing::internal::GetCapturedStderr();
  if (!workers()) return;
  EXPECT_TRUE(Has(text, "on_start threw: no licence"));
  EXPECT_TRUE(Has(text, "on_end threw"));
}

TEST_P(HooksTest, WorkersHooksMayPushAsMuchAsTheyLike) {
  if (!workers()) GTEST_SKIP() << "no worker, no hook";
  constexpr int kPushed = 500;
  std::atomic<Engine*> engine{nullptr};
  std::atomic<int> ran{0};
  Counter pushed;
  EngineOptions o = Quiet(workers());
  o.max_pending = 64;  // whoever keeps its worker must not wait for room
  std::atomic<bool> quiet{false};
  o.on_start = o.on_end = [&](int) {
    if (quiet) return;
    Engine* eng = nullptr;
    while (!(eng = engine)) std::this_thread::yield();
    for (int i = 0; i < kPushed; ++i) eng->Push({}, [&] { ++ran; });
    pushed.Add();
  };
  Engine eng(o);
  engine = &eng;
  pushed.WaitFor(workers());
  eng.WaitAll();
  EXPECT_EQ(ran, kPushed * workers());
  eng.Stop();
  EXPECT_EQ(ran, kPushed * workers());
  quiet = true;
  eng.Start();
  eng.WaitAll();
  EXPECT_EQ(ran, 2 * kPushed * workers());
}

TEST_P(HooksTest, WaitsOfWorkersHooksAreRefused) {
  if (!workers()) GTEST_SKIP() << "no worker, no hook";
  std::atomic<Engine*> engine{nullptr};
  Refusals refused;
  Counter told;
  EngineOptions o = Quiet(workers());
  o.on_start = o.on_end = [&](int) {
    if (told.count() >= 2 * workers()) return;  // after the Stop
    Engine* eng = nullptr;
    while (!(eng = engine)) std::this_thread::yield();
    Var mine = eng->NewVar("mine");
    HeldOp held = HoldWrite(*eng, mine);
    refused.Of([&] { eng->Wait(mine); });
    refused.Of([&] { eng->WaitFor(mine, std::chrono::hours(1)); });
    refused.Of([&] { eng->WaitAll(); });
    told.Add();
  };
  Engine eng(o);
  engine = &eng;
  told.WaitFor(workers());
  eng.WaitAll();
  eng.Stop();
  eng.Start();
  EXPECT_TRUE(refused.AllSay("a wait in on_start or on_end", 6 * static_cast<size_t>(workers())));
  eng.Shutdown();
}

TEST_P(HooksTest, WorkersHooksMayNotStopStartOrShutDown) {
  if (!workers()) GTEST_SKIP() << "no worker, no hook";
  std::atomic<Engine*> engine{nullptr};
  Refusals refused;
  EngineOptions o = Quiet(workers());
  o.on_start = o.on_end = [&](int) {
    Engine* eng = nullptr;
    while (!(eng = engine)) std::this_thread::yield();
    refused.OfStopStartShutdown(*eng);
  };
  {
    Engine eng(o);
    engine = &eng;
    eng.Stop();
  }
  // Both hooks of each worker, at Stop and at the start for the drain.
  EXPECT_TRUE(refused.AllSay(kWouldWait, 12 * static_cast<size_t>(workers())));
}

TEST_P(HooksTest, OnStallMayPushAndWaitButNotEndTheEngine) {
  std::atomic<Engine*> engine{nullptr};
  Refusals refused;
  Gate told;
  std::atomic<bool> ran{false};
  EngineOptions o = Quiet(workers());
  o.stall_timeout = 20ms;
  o.on_stall = [&](std::string_view) {
    Engine* eng = nullptr;
    while (!(eng = engine)) std::this_thread::yield();
    if (told.open()) return;
    Var mine = eng->NewVar("mine");
    eng->Push({.writes = {mine}}, [&] { ran = true; });
    eng->Wait(mine);
    refused.OfStopStartShutdown(*eng);
    told.Open();
    throw std::runtime_error("the pager is off");
  };
  testing::internal::CaptureStderr();
  {
    Engine eng(o);
    Var a = eng.NewVar("a");
    HeldOp held = HoldWrite(eng, a);
    engine = &eng;
    told.Wait();
  }
  EXPECT_TRUE(Has(testing::internal::GetCapturedStderr(), "on_stall threw: the pager is off"));
  EXPECT_TRUE(ran);
  EXPECT_TRUE(refused.AllSay(kWouldWait, 3));
}

TEST_P(HooksTest, OnUnobservedMayWaitButNotPushStopStartOrShutDown) {
  Engine* engine = nullptr;
  Refusals refused, pushes;
  EngineOptions o = Quiet(workers());
  o.on_unobserved = [&](const OpError&) {
    pushes.Of([&] { engine->Push({}, [] {}); });
    pushes.Of([&] { engine->NewVar("late"); });
    engine->WaitAll();
    engine->DescribePending();
    refused.OfStopStartShutdown(*engine);
    throw std::runtime_error("the log is full");
  };
  testing::internal::CaptureStderr();
  {
    Engine eng(o);
    engine = &eng;
    eng.Push({}, [] { throw std::runtime_error("unseen"); });
  }
  EXPECT_TRUE(Has(testing::internal::GetCapturedStderr(), "on_unobserved threw: the log is full"));
  EXPECT_TRUE(pushes.AllSay("shutdown", 2));
  EXPECT_TRUE(refused.AllSay(kWouldWait, 3));
}

// An engine that its own hook destroys: somebody else ends it, and a report of that inside on_unobserved goes to stderr.
// What the hooks share with us stays, because nobody says when that other thread is done.
struct Destroyed {
  std::unique_ptr<Engine> engine;
  Gate made, gone;
  void ByHook() {
    made.Wait();
    if (!engine) return;
    engine.reset();
    gone.Open();
  }
};

std::vector<Destroyed*>& Kept() {
  static auto* kept = new std::vector<Destroyed*>;
  return *kept;
}

TEST_P(HooksTest, OnStartMayDestroyTheEngine) {
  if (!workers()) GTEST_SKIP() << "no worker, no hook";
  auto& d = *Kept().emplace_back(new Destroyed);
  Counter reported;
  EngineOptions o;
  o.workers = workers();
  o.on_start = [&d](int worker) {
    if (worker == 0) d.ByHook();
  };
  o.on_unobserved = [&](const OpError&) { reported.Add(); };
  d.engine = std::make_unique<Engine>(o);
  d.made.Open();
  d.gone.Wait();
  reported.WaitFor(1);
}

TEST_P(HooksTest, OnEndMayDestroyTheEngine) {
  if (!workers()) GTEST_SKIP() << "no worker, no hook";
  auto& d = *Kept().emplace_back(new Destroyed);
  Counter reported;
  EngineOptions o;
  o.workers = workers();
  o.on_end = [&d](int worker) {
    if (worker == 0) d.ByHook();
  };
  o.on_unobserved = [&](const OpError&) { reported.Add(); };
  d.engine = std::make_unique<Engine>(o);
  d.made.Open();
  d.engine->Stop();
  d.gone.Wait();
  reported.WaitFor(1);
}

TEST_P(HooksTest, OnStallMayDestroyTheEngine) {
  auto& d = *Kept().emplace_back(new Destroyed);
  Counter reported;
  EngineOptions o = Quiet(workers());
  o.stall_timeout = 4ms;
  o.on_stall = [&d](std::string_view) { d.ByHook(); };
  o.on_unobserved = [&](const OpError&) { reported.Add(); };
  d.engine = std::make_unique<Engine>(o);
  Var a = d.engine->NewVar("a");
  HeldOp held = HoldWrite(*d.engine, a);
  d.made.Open();
  d.gone.Wait();
  reported.WaitFor(1);
}

TEST_P(HooksTest, OnUnobservedMayDestroyTheEngine) {
  auto& d = *Kept().emplace_back(new Destroyed);
  EngineOptions o = Quiet(workers());
  o.on_unobserved = [&d](const OpError&) { d.ByHook(); };
  d.engine = std::make_unique<Engine>(o);
  Engine& eng = *d.engine;
  eng.Push({}, [] { throw std::runtime_error("unseen"); });
  d.made.Open();
  testing::internal::CaptureStderr();
  eng.Shutdown();
  EXPECT_TRUE(Has(testing::internal::GetCapturedStderr(), "destroyed on one of its own threads"));
  EXPECT_TRUE(d.gone.open());
}

}  // namespace
}  // namespace engine::test
