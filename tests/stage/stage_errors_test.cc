// Stages with threads: errors and the end of the data, timeouts, and options that are refused.
#include <unistd.h>

#include <array>
#include <utility>

#include "counting.h"
#include "support/engine_test.h"
#include "support/threads.h"
#include "turned_clock.h"

namespace engine::test {
namespace {

using Taken = StagingArea::Taken;

TEST(StageTest, AnErrorComesAsItselfAfterTheItemsBeforeItAndStays) {
  Stage<int> stage({.capacity = 4, .num_threads = 3}, Count(100), [](int x) {
    if (x == 5) throw std::out_of_range("row 5");
    return x;
  });
  for (int i = 0; i < 5; ++i) EXPECT_EQ(stage.Take(), i);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Caught<std::out_of_range>([&] { stage.Take(); }, "the error").what(), std::string("row 5"));
  }
  EXPECT_EQ(stage.stats().position, 5u);
}

TEST(StageTest, AnErrorOfTheSerialPartToo) {
  Stage<int> stage(
      {.num_threads = 3},
      [n = 0]() mutable {
        if (n == 3) throw std::runtime_error("truncated");
        return n++;
      },
      Same);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(stage.Take(), i);
  EXPECT_THROW(stage.Take(), std::runtime_error);
}

TEST(StageTest, TheEndMayBeSaidByWhatMakesItemsAndIsExact) {
  Stage<int> stage({.capacity = 8, .num_threads = 4}, Count(100), [](int x) {
    if (x >= 10) throw EndOfData();
    return x;
  });
  EXPECT_EQ(Drain(stage), UpTo(10));
}

TEST(StageTest, OtherTypesMayCloseAndBeIgnored) {
  Stage<int> stage({.closed_exception_types = AnyOf<std::length_error>(),
                    .ignored_exception_types = AnyOf<std::domain_error, std::range_error>()},
                   Count(100), [](int x) {
                     if (x == 50) throw std::length_error("over");
                     if (x % 3 == 0) throw std::domain_error("bad");
                     if (x % 3 == 1) throw std::range_error("bad");
                     return x;
                   });
  std::vector<int> expected;
  for (int i = 2; i < 50; i += 3) expected.push_back(i);
  EXPECT_EQ(Drain(stage), expected);
  EXPECT_EQ(stage.stats().skipped, 34u);
}

TEST(StageTest, APersistentIgnoredErrorEndsAsItselfWhenItsBudgetIsSpent) {
  std::atomic<int> calls{0};
  Stage<int> stage({.ignored_exception_types = AnyOf<std::domain_error>(), .ignored_budget = 9},
                   [&]() -> int { throw std::domain_error("call " + std::to_string(++calls)); });
  EXPECT_EQ(Caught<std::domain_error>([&] { stage.Take(); }, "the error").what(), std::string("call 10"));
  EXPECT_EQ(stage.stats().skipped, 9u);
}

TEST(StageTest, WhilePersistentErrorsAreIgnoredTheSourceIsLeftAloneForLongerAndLonger) {
  TurnedClock clock;
  Counter calls;
  Stage<int> stage({.ignored_exception_types = AnyOf<std::domain_error>(), .clock = &clock}, [&]() -> int {
    calls.Add();
    if (calls.count() == 22) return 22;
    throw std::domain_error("persistent");
  });
  stage.Start();
  for (int call = 9, millis = 1; call < 22; ++call, millis = std::min(2 * millis, 1000)) {
    EXPECT_EQ(clock.Next(), std::chrono::milliseconds(millis));
    EXPECT_EQ(calls.count(), call);
    clock.Turn(std::chrono::milliseconds(millis) - 1ns);
    EXPECT_EQ(clock.Next(), 1ns);
    clock.Turn(1ns);
    calls.WaitFor(call + 1);
  }
  EXPECT_EQ(stage.Take(), 22);
  EXPECT_EQ(clock.Next(), 1ms);  // an item ends it: eight more are free
  EXPECT_EQ(calls.count(), 22 + 9);
  stage.Cancel();
  EXPECT_TRUE(stage.JoinFor(20s));  // also in a pause
}

// Counts how often a stage sleeps.
class CountedClock final : public StageClock {
 public:
  Time Now() override { return clock.Now(); }
  void WaitUntil(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, Time until) override {
    waits.Add();
    clock.WaitUntil(changed, lock, until);
  }
  TurnedClock clock;
  Counter waits;
};

TEST(StageTest, AllProducersSleepThroughAPauseAndWorkBehindIt) {
  for (const bool serial : {false, true}) {
    CountedClock clock;
    std::atomic<bool> broken{true};
    Counter calls;
    std::array<std::atomic<int>, 3> threads{};
    const auto source = [&] {
      thread_local bool known = false;
      if (!std::exchange(known, true)) {
        int none = 0;
        for (auto& thread : threads)
          if (none = 0; thread.compare_exchange_strong(none, gettid())) break;
      }
      calls.Add();
      if (broken) throw std::domain_error("persistent");
      return 1;
    };
    const StageOptions options{
        .capacity = 3, .num_threads = 3, .ignored_exception_types = AnyOf<std::domain_error>(), .clock = &clock};
    Stage<int> stage = serial ? Stage<int>(options, source, Same) : Stage<int>(options, source);
    stage.Start();
    calls.WaitFor(9);  // the ninth error begins a pause
    EXPECT_GT(clock.clock.Next(), 0ns);
    // Others call the stage meanwhile, which is no reason to wake who waits for the end of the pause.
    std::optional<int> item;
    for (int i = 0; i < 50; ++i) {
      EXPECT_EQ(stage.TakeFor(&item, 0ms), Taken::kTimeout);
      for (const auto& thread : threads)
        if (thread != 0) AwaitAsleep(thread);
    }
    EXPECT_LE(clock.waits.count(), 3 * 4);
    EXPECT_LE(calls.count(), 8 + 3);
    broken = false;
    for (int i = 0; i < 20; ++i)
      while (stage.TakeFor(&item, 0ms) != Taken::kItem)
        clock.clock.Turn(1s);  // an error that was on its way pauses again
    stage.Cancel();
    EXPECT_TRUE(stage.JoinFor(20s));
  }
}

TEST(StageTest, AFilterThatThrowsFailsTheStageWithWhatItThrew) {
  const StagePool pool = MakeStagePool({.global_name = "filters"});
  const ExceptionFilter throws = [](const std::exception_ptr&) -> bool { throw std::logic_error("filter"); };
  for (const bool closed : {true, false}) {
    for (const bool serial : {true, false}) {
      StageOptions options{.capacity = 2, .num_threads = 3, .pool = pool};
      (closed ? options.closed_exception_types : options.ignored_exception_types) = throws;
      const auto bad = [](int x) { return x == 3 ? throw std::runtime_error("row 3") : x; };
      Stage<int> stage = serial ? Stage<int>(
                                      options, [bad, n = 0]() mutable { return bad(n++); }, Same)
                                : Stage<int>(
                                      options, [n = 0]() mutable { return n++; }, bad);
      for (int i = 0; i < 3; ++i) EXPECT_EQ(stage.Take(), i);
      for (int i = 0; i < 2; ++i)
        EXPECT_EQ(Caught<std::logic_error>([&] { stage.Take(); }, "the filter's").what(), std::string("filter"));
      EXPECT_TRUE(stage.JoinFor(20s));
      stage.RestartWith(Count(2), Same);
      EXPECT_EQ(Drain(stage), UpTo(2));
    }
  }
}

TEST(StageTest, NoRoomInTimeIsAnErrorThatNamesTheStageAndTheItem) {
  Counter begun;
  Stage<int> stage({.name = "rows", .timeout = 1ms}, Count(100), [&](int x) { return begun.Add(), x; });
  stage.Start();
  EXPECT_TRUE(stage.JoinFor(20s));  // the failure ends the producer
  EXPECT_EQ(stage.Take(), 0);
  const std::string text = Caught<StageTimeoutError>([&] { stage.Take(); }, "a timeout").what();
  EXPECT_TRUE(Has(text, "stage 'rows': item 1 waited 1 ms for room"));
  EXPECT_TRUE(Has(text, "capacity 1"));
}

TEST(StageTest, NoRoomInTimeMayDropAndIsCounted) {
  Counter begun;
  Stage<int> stage({.timeout = 0ms, .on_timeout = OnTimeout::kDrop}, Count(100), [&](int x) { return begun.Add(), x; });
  stage.Start();
  EXPECT_TRUE(stage.JoinFor(20s));
  EXPECT_EQ(Drain(stage), UpTo(1));
  EXPECT_EQ(stage.stats().drops, 99u);
  EXPECT_EQ(begun.count(), 100);
}

TEST(StageTest, RoomIsWaitedForForTheTimeoutAfterTheLastTake) {
  for (const bool drop : {false, true}) {
    TurnedClock clock;
    Stage<int> stage({.on_timeout = drop ? OnTimeout::kDrop : OnTimeout::kError, .clock = &clock}, Count(5), Same);
    stage.Start();
    EXPECT_EQ(clock.Next(), 300s);
    clock.Turn(299s);
    EXPECT_EQ(stage.Take(), 0);
    while (stage.stats().begun < 3 || clock.Next() != 300s) std::this_thread::yield();
    clock.Turn(300s);
    if (!drop) {
      EXPECT_TRUE(stage.JoinFor(20s));
      EXPECT_EQ(stage.Take(), 1);
      const std::string text = Caught<StageTimeoutError>([&] { stage.Take(); }, "a timeout").what();
      EXPECT_TRUE(Has(text, "item 2 waited 300 s for room, and nothing was taken: 1 item of capacity 1"));
      continue;
    }
    while (stage.stats().begun < 4) std::this_thread::yield();  // with 2 dropped it goes on
    EXPECT_EQ(stage.stats().drops, 1u);
    EXPECT_EQ(Drain(stage), (std::vector<int>{1, 3, 4}));
    EXPECT_EQ(stage.stats().position, 5u);
  }
}

TEST(StageTest, AnItemIsWaitedForForTheTimeoutAndItsWaitIsCounted) {
  TurnedClock clock;
  Gate gate;
  Stage<int> stage({.take_timeout = 5000ms, .clock = &clock}, [&] { return gate.Wait(), 1; });
  Slot<std::string> told;
  std::thread consumer([&] {
    told.Put(Caught<StageTimeoutError>([&] { stage.Take(); }, "a timeout").what());
    std::optional<int> item;
    EXPECT_EQ(stage.TakeFor(&item, 2s), Taken::kTimeout);
    told.Put("and again");
  });
  EXPECT_EQ(clock.Next(), 5s);
  clock.Turn(5s);
  EXPECT_TRUE(Has(told.Take(), "no item within 5 s: "));
  EXPECT_EQ(clock.Next(), 2s);
  clock.Turn(2s);
  EXPECT_EQ(told.Take(), "and again");
  consumer.join();
  EXPECT_EQ(stage.stats().consumer_wait, 7s);
  gate.Open();
  EXPECT_EQ(stage.Take(), 1);
}

TEST(StageTest, ASourceThatBlocksForEverIsNamed) {
  Gate gate;
  Counter inside;
  Stage<int> stage({.name = "reader", .take_timeout = 1ms}, [&] { return inside.Add(), gate.Wait(), 1; });
  stage.Start();
  inside.WaitFor(1);
  const std::string text = Caught<StageTimeoutError>([&] { stage.Take(); }, "a timeout").what();
  EXPECT_TRUE(Has(text, "stage 'reader': no item within 1 ms"));
  EXPECT_TRUE(Has(text, "the source has not returned"));
  gate.Open();
  std::optional<int> item;
  while (stage.TakeFor(&item, 1ms) != Taken::kItem) {
  }
  EXPECT_EQ(item, 1);  // the wait was given up, not the stage
}

TEST(StageTest, OptionsThatCannotBeHonouredAreRefused) {
  const auto refusal = [](StageOptions options) {
    options.name = "bad";
    return RefusalOf([&] { Stage<int>(options, [] { return 1; }); });
  };
  EXPECT_TRUE(Has(refusal({.capacity = 0}), "stage 'bad': capacity is 0"));
  EXPECT_TRUE(Has(refusal({.num_threads = 0}), "num_threads is 0"));
  EXPECT_TRUE(Has(refusal({.num_clients = -1}), "num_clients is -1"));
  EXPECT_TRUE(Has(refusal({.timeout = -1ms}), "timeout is -1"));
  EXPECT_TRUE(Has(refusal({.ignored_budget = -1}), "ignored_budget is -1"));
  EXPECT_TRUE(Has(refusal({.max_threads = -1}), "max_threads is -1; at least 0 is expected"));
  EXPECT_TRUE(Has(refusal({.stage_subgraph_stream_id = 1}), "stage_subgraph_stream_id is 1; without a device only 0"));
}

}  // namespace
}  // namespace engine::test
