// Stages with threads: who sees what, and who lets whom go.
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "counting.h"
#include "engine/engine.h"
#include "engine/smart_stage.h"
#include "support/child.h"
#include "support/engine_test.h"
#include "support/threads.h"

namespace engine::test {
namespace {

TEST(StageTest, ManyThreadsMakeWhatOneWouldMake) {
  for (const int threads : {1, 2, 4, 8}) {
    Stage<std::string> stage({.capacity = 3, .num_threads = threads}, Count(500), [](int x) {
      if (x % 7 == 0) std::this_thread::yield();
      return std::to_string(x);
    });
    std::vector<std::string> expected;
    for (int i = 0; i < 500; ++i) expected.push_back(std::to_string(i));
    EXPECT_EQ(Drain(stage), expected);
    EXPECT_EQ(stage.Take(), std::nullopt);
    EXPECT_EQ(stage.stats().position, 500u);
  }
}

TEST(StageTest, UnorderedLosesAndRepeatsNothing) {
  Stage<int> stage({.capacity = 3, .num_threads = 4, .ordered = false}, Count(500), Same);
  std::vector<int> all = Drain(stage);
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all, UpTo(500));
  EXPECT_EQ(stage.stats().position, 500u);
}

TEST(StageTest, IndependentCallsAreAllDelivered) {
  std::atomic<int> next{0};
  Stage<int> stage({.capacity = 2, .num_threads = 4}, [&]() -> std::optional<int> {
    const int mine = next++;
    if (mine >= 300) return {};
    return mine;
  });
  std::vector<int> all = Drain(stage);
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all, UpTo(300));
}

TEST(StageTest, NothingIsReadBeforeTheFirstTakeAndNobodyHasToStartIt) {
  std::atomic<int> read{0};
  Stage<int> stage({}, [&] { return ++read; });
  EXPECT_EQ(read, 0);
  EXPECT_EQ(stage.Take(), 1);
}

TEST(StageTest, StartReadsAheadAsFarAsCapacityAndThreadsGo) {
  Counter read;
  Stage<int> stage({.capacity = 3, .num_threads = 2}, [&] { return read.Add(), 1; });
  stage.Start();
  stage.Start();
  read.WaitFor(5);
  EXPECT_EQ(stage.Take(), 1);
  read.WaitFor(6);
  stage.Cancel();
  EXPECT_TRUE(stage.JoinFor(20s));
  EXPECT_EQ(read.count(), 6);
}

TEST(StageTest, EachItemGoesToOneClientAndAllSeeTheEnd) {
  Stage<int> stage({.capacity = 2, .num_threads = 2, .num_clients = 4}, Count(400), Same);
  std::array<std::vector<int>, 4> got;
  std::vector<std::thread> clients;
  for (auto& mine : got) clients.emplace_back([&] { mine = Drain(stage); });
  for (auto& client : clients) client.join();
  std::vector<int> all;
  for (const auto& mine : got) {
    EXPECT_TRUE(std::is_sorted(mine.begin(), mine.end()));
    all.insert(all.end(), mine.begin(), mine.end());
  }
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all, UpTo(400));
}

TEST(StageTest, MoreClientsThanSaidAreRefused) {
  Gate gate;
  Slot<std::string> refusal;
  Stage<int> stage({.name = "rows"}, [&] { return gate.Wait(), 1; });
  std::atomic<int> taken{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 2; ++i) {  // whoever comes second is refused
    clients.emplace_back([&] {
      try {
        taken += *stage.Take();
      } catch (const UsageError& error) {
        refusal.Put(error.what());
      }
    });
  }
  const std::string text = refusal.Take();
  EXPECT_TRUE(Has(text, "stage 'rows'"));
  EXPECT_TRUE(Has(text, "num_clients (1)"));
  gate.Open();
  for (auto& client : clients) client.join();
  EXPECT_EQ(taken, 1);
}

TEST(StageTest, CancelWakesTheConsumerWhileTheSourceBlocks) {
  Gate gate;
  Counter inside;
  Stage<int> stage({.name = "slow"}, [&] { return inside.Add(), gate.Wait(), 1; });
  std::thread consumer(
      [&] { EXPECT_TRUE(Has(Caught<CancelledError>([&] { stage.Take(); }, "a cancel").what(), "stage 'slow'")); });
  inside.WaitFor(1);
  stage.Cancel();
  stage.Cancel();
  consumer.join();
  EXPECT_THROW(stage.Take(), CancelledError);
  EXPECT_FALSE(stage.JoinFor(0ns));
  gate.Open();
  EXPECT_TRUE(stage.JoinFor(20s));
}

// It would wait for itself.
TEST(StageTest, ItsOwnSourceMayNeitherJoinNorRestartIt) {
  const std::function<void(Stage<int>&)> calls[] = {[](Stage<int>& s) { s.JoinFor(1ms); },
                                                    [](Stage<int>& s) { s.Restart(); }};
  for (const auto& call : calls) {
    Stage<int>* own = nullptr;
    Stage<int> stage({.name = "rows"}, [&]() -> int { return call(*own), 1; });
    own = &stage;
    EXPECT_TRUE(Has(RefusalOf([&] { stage.Take(); }), "stage 'rows': its own source calls "));
    EXPECT_TRUE(stage.JoinFor(Timeout::kForever));
  }
}

TEST(StageTest, CloseDeliversWhatWasBegunAlsoWhatWaitsForRoom) {
  Counter begun;
  Stage<int> stage({.capacity = 1, .num_threads = 2}, Count(100), [&](int x) { return begun.Add(), x; });
  stage.Start();
  begun.WaitFor(3);  // one buffered, two with their producers
  stage.Close();
  stage.Close();
  EXPECT_EQ(Drain(stage), UpTo(3));
}

TEST(StageTest, ShutdownNeedsNoMoreThanTheItemsInHand) {
  const int before = Threads();
  std::atomic<int> made{0};
  int at_cancel;
  {
    Stage<int> stage({.capacity = 4, .num_threads = 4}, [&] { return made++; });
    for (int i = 0; i < 100; ++i) stage.Take();
    stage.Cancel();
    at_cancel = made;
  }
  EXPECT_LE(made, at_cancel + 4);
  AwaitThreads(before);
}

TEST(StageTest, ARestartShowsNothingOfTheRunBefore) {
  int run = 0;
  Stage<int> stage({.capacity = 4, .num_threads = 1}, Count(10), Same);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(stage.Take(), 100 * run);
    ++run;
    stage.RestartWith(Count(100 * run + 10, 100 * run), Same);
    EXPECT_EQ(stage.stats().delivered, 0u);
  }
  EXPECT_EQ(Drain(stage).size(), 10u);
  stage.Restart();
  EXPECT_EQ(Drain(stage).size(), 10u);
}

// Each restart begins the run that it has made, so that one which another restart replaces has threads.
TEST(StageTest, RestartsAtOnceLeaveOneRunAndNoThreads) {
  const int before = Threads();
  for (int round = 0; round < 200; ++round) {
    Stage<int> stage({.capacity = 2}, Count(100), Same);
    Counter there;
    const auto restart = [&](int first) {
      there.Add();
      there.WaitFor(2);
      stage.RestartWith(Count(first + 10, first), Same);
      stage.Start();
    };
    std::thread a(restart, 1000), b(restart, 2000);
    a.join();
    b.join();
    const auto got = Drain(stage);
    ASSERT_EQ(got.size(), 10u);
    for (int i = 0; i < 10; ++i) EXPECT_EQ(got[static_cast<size_t>(i)], got[0] + i);
  }
  AwaitThreads(before);
}

TEST(StageTest, CancelAndCloseWorkWhileBothSidesBlock) {
  for (const bool cancel : {true, false}) {
    Gate gate;
    Stage<int> stage({.capacity = 1, .num_threads = 3}, Count(100), [&](int x) {
      if (x == 0) gate.Wait();
      return x;
    });
    std::thread consumer([&] {
      if (cancel) {
        EXPECT_THROW(stage.Take(), CancelledError);
      } else {
        EXPECT_EQ(Drain(stage), UpTo(3));
      }
    });
    while (stage.stats().waiting < 2) std::this_thread::yield();  // 1 and 2 are finished, and wait for room behind 0
    for (int twice = 0; twice < 2; ++twice) cancel ? stage.Cancel() : stage.Close();
    if (cancel) consumer.join();
    gate.Open();
    if (!cancel) consumer.join();
    EXPECT_TRUE(stage.JoinFor(20s));
  }
}

TEST(StageTest, AProducerWithoutRoomHoldsNoComputeWorker) {
  Engine eng(Quiet(1));
  Counter begun;
  Stage<int> stage({}, [&] { return begun.Add(), 1; });
  stage.Start();
  begun.WaitFor(2);
  Var v = eng.NewVar("v");
  eng.Push({.writes = {v}}, [] {});
  eng.Wait(v);
}

TEST(StageTest, AStageMayReadFromAStage) {
  Stage<int> rows({.capacity = 2}, Count(200), Same);
  Stage<int> parsed(
      {.capacity = 2, .num_threads = 2}, [&] { return rows.Take(); }, [](int x) { return 2 * x; });
  Stage<int> looked_up(
      {.capacity = 2, .num_threads = 3}, [&] { return parsed.Take(); }, [](int x) { return x / 2; });
  EXPECT_EQ(Drain(looked_up), UpTo(200));
}

TEST(StageTest, APlanIsASourceAndWhatItsNodesThrowIsWhatASourceThrows) {
  Engine eng(Quiet(2));
  for (const bool fails : {false, true}) {
    Var file = eng.NewVar("file");
    int at = 0;
    Graph graph;
    const NodeId read = graph.Add({.name = "read", .outputs = 1, .updates = {file}}, [&](NodeContext& ctx) {
      if (at == 20 && fails) throw std::out_of_range("row 20");
      if (at == 20) throw EndOfData();
      ctx.Return(0, at++);
    });
    const NodeId twice = graph.Add({.name = "twice", .inputs = {read[0]}, .outputs = 1},
                                   [](NodeContext& ctx) { ctx.Return(0, std::to_string(2 * ctx.In<int>(0))); });
    graph.Output(twice[0]);
    Stage<std::string> stage({.capacity = 3, .num_threads = 2}, ItemsOf<std::string>(graph.Compile(eng)),
                             [](std::string text) { return text; });
    for (int i = 0; i < 20; ++i) EXPECT_EQ(stage.Take(), std::to_string(2 * i));
    if (fails) {
      EXPECT_THROW(stage.Take(), std::out_of_range);
    } else {
      EXPECT_EQ(stage.Take(), std::nullopt);
    }
  }
}

TEST(StageTest, ItemsThatNobodyTakesAreDestroyed) {
  const auto token = std::make_shared<int>(0);
  for (const bool cancel : {true, false}) {
    Counter begun;
    Stage<std::shared_ptr<int>> stage({.capacity = 3, .num_threads = 2}, [&] { return begun.Add(), token; });
    stage.Start();
    begun.WaitFor(5);
    stage.Take();
    if (cancel) stage.Cancel();
  }
  EXPECT_EQ(token.use_count(), 1);
}

TEST(StageTest, CountersTellWhoWaits) {
  Counter begun;
  Stage<std::vector<char>> stage({.capacity = 2}, [&] { return begun.Add(), std::vector<char>(1000); });
  stage.Start();
  begun.WaitFor(3);
  while (stage.stats().waiting == 0) std::this_thread::yield();
  const StageStats stats = stage.stats();
  EXPECT_EQ(stats.fill, 2u);
  EXPECT_GE(stats.fill_bytes, 2000u);
  EXPECT_EQ(stats.room_waits, 1u);
  stage.Take();
  begun.WaitFor(4);
  EXPECT_GT(stage.stats().producer_wait.count(), 0);
  EXPECT_EQ(stage.stats().consumer_wait.count(), 0);
}

TEST(StageTest, AutotuneGrowsWhileTheConsumerWaits) {
  Stage<int> stage({.num_threads = 1, .autotune = true, .max_threads = 3}, [] { return 1; });
  // The consumer does nothing but take: it waits, and the source never does for long.
  while (stage.stats().threads == 1 && stage.stats().capacity == 1) stage.Take();
}

TEST(StageTest, InTheChildOfAForkItSaysWhereItsProducersAre) {
  Counter begun;
  Stage<int> stage({.name = "rows"}, Count(100), [&](int x) { return begun.Add(), x; });
  EXPECT_EQ(stage.Take(), 0);
  begun.WaitFor(2);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    int code = 1;
    try {
      stage.Take();
    } catch (const ForkedWhilePending& error) {
      code = std::string(error.what()).find("stage 'rows'") == 0 ? 0 : 2;
    }
    _exit(code);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(stage.Take(), 1);
}

// Its destructor waits, on the thread that is told to: in the middle of replacing the source.
struct GoesSlowly {
  static inline thread_local bool t_waits = false;
  static inline std::atomic<bool> goes{false}, may_go{false};
  int first = 0;
  explicit GoesSlowly(int from) : first(from) {}
  GoesSlowly(const GoesSlowly&) = default;
  ~GoesSlowly() {
    if (first != 0 || !std::exchange(t_waits, false)) return;
    goes = true;
    while (!may_go) std::this_thread::yield();
  }
  int operator()() { return first++; }
};

// A source whose copy waits, on a thread that says so.
struct IsCopiedSlowly {
  static inline thread_local bool t_waits = false;
  static inline std::atomic<bool> goes{false}, may_go{false};
  int first = 0;
  explicit IsCopiedSlowly(int from) : first(from) {}
  IsCopiedSlowly(IsCopiedSlowly&&) = default;
  IsCopiedSlowly(const IsCopiedSlowly& other) : first(other.first) {
    if (!std::exchange(t_waits, false)) return;
    goes = true;
    while (!may_go) std::this_thread::yield();
  }
  int operator()() { return first++; }
};

// One restart is in the middle while another makes a run, whose threads have begun. That run ends, too.
TEST(StageTest, ARestartEndsTheRunThatAnotherHasBegunMeanwhile) {
  const int before = Threads();
  IsCopiedSlowly::goes = IsCopiedSlowly::may_go = false;
  {
    Stage<int> stage({}, IsCopiedSlowly(0), Same);
    std::thread slow([&] {
      IsCopiedSlowly::t_waits = true;
      stage.RestartWith(IsCopiedSlowly(100), Same);
    });
    while (!IsCopiedSlowly::goes) std::this_thread::yield();
    stage.RestartWith(IsCopiedSlowly(200), Same);
    EXPECT_EQ(stage.Take(), 200);
    IsCopiedSlowly::may_go = true;
    slow.join();
    EXPECT_EQ(stage.Take(), 100);
  }
  AwaitThreads(before);
}

TEST(StageTest, AChildForkedInTheMiddleOfARestartHasAWholeSource) {
  if (kUnderTsan) GTEST_SKIP() << "ThreadSanitizer starts no threads in a forked child";
  GoesSlowly::goes = GoesSlowly::may_go = false;
  Stage<int> stage({}, GoesSlowly(0), [](int x) { return x; });
  std::thread restarts([&] {
    GoesSlowly anew(100);
    GoesSlowly::t_waits = true;
    stage.RestartWith(anew, [](int x) { return 1000 + x; });
    GoesSlowly::t_waits = false;
  });
  while (!GoesSlowly::goes) std::this_thread::yield();
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    stage.Restart();
    _exit(stage.Take() == 1100 ? 0 : 1);  // its own pull, and its own make
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  GoesSlowly::may_go = true;
  restarts.join();
}

TEST(StageTest, ThreadsOfAChildMayRestartItAtOnce) {
  if (const char* why = WhyNoForks()) GTEST_SKIP() << why;
  for (int round = 0; round < 20; ++round) {
    Stage<int> stage({.capacity = 2}, Count(10), Same);
    EXPECT_EQ(stage.Take(), 0);
    EXPECT_TRUE(InChild([&] {
      Counter there;
      const auto restart = [&] {
        there.Add();
        there.WaitFor(4);
        stage.RestartWith(Count(1010, 1000), Same);
        stage.Start();
      };
      std::vector<std::thread> threads;
      for (int i = 0; i < 4; ++i) threads.emplace_back(restart);
      for (std::thread& thread : threads) thread.join();
      const auto got = Drain(stage);
      return got.size() == 10 && got[0] == 1000;
    }));
    EXPECT_EQ(Drain(stage).size(), 9u);
  }
}

TEST(StageTest, AChildMayReadAnew) {
  if (kUnderTsan) GTEST_SKIP() << "ThreadSanitizer starts no threads in a forked child";
  auto stage = std::make_unique<Stage<int>>(StageOptions{}, Count(5), Same);
  EXPECT_EQ(stage->Take(), 0);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    stage->RestartWith(Count(5), Same);
    const bool good = Drain(*stage) == UpTo(5);
    stage.reset();
    _exit(good ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace engine::test
