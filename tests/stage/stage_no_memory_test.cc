// A stage is refused memory: whoever asked, or all consumers, get bad_alloc behind the items that were finished; nothing hangs, and its
// pool goes on. The refusals are counted through: the first allocation of a thread fails, then the second, until none is left.
#include "support/no_memory.h"

#include <new>
#include <optional>
#include <thread>
#include <vector>

#include "counting.h"
#include "support/engine_test.h"
#include "training_program.h"

namespace engine::test {
namespace {

constexpr int kItems = 40;

// Refuses the calling thread the memory that it asks for behind the next `after` allocations, once or from then on.
struct RefuseAfter {
  RefuseAfter(int after, bool once) {
    t_only_one = once;
    t_until_failure = after;
  }
  ~RefuseAfter() {
    t_until_failure = -1;
    t_only_one = false;
  }
};

StagePool ThePool() {
  static const StagePool pool = MakeStagePool({.global_name = "no memory", .inter_op_threads_num = 1});
  return pool;
}

// The items of the stage up to its end or its failure; whether it ended.
bool TakeAll(Stage<int>& stage, std::vector<int>* got) {
  try {
    while (const auto item = stage.Take()) got->push_back(*item);
    return true;
  } catch (const std::bad_alloc&) {
    EXPECT_THROW(stage.Take(), std::bad_alloc);  // at every later call too
    return false;
  }
}

// A source that refuses its own producers memory from its third item on.
auto Refusing(int after, bool once) {
  return [=, next = 0]() mutable -> std::optional<int> {
    if (next == kItems) return {};
    if (next == 3) {
      t_only_one = once;
      t_until_failure = after;
    }
    return next++;
  };
}

void CountThrough(StageOptions options, bool serial) {
  for (const bool once : {true, false}) {
    int failed = 0;
    for (int after = 0, whole = 0; whole < 3; ++after) {
      ASSERT_LT(after, 2000);
      std::vector<int> got;
      {
        options.pool = ThePool();
        Stage<int> stage =
            serial ? Stage<int>(options, Refusing(after, once), Same) : Stage<int>(options, Refusing(after, once));
        const bool ended = TakeAll(stage, &got);
        whole = ended ? whole + 1 : 0;
        failed += !ended;
        if (options.ordered && options.on_timeout == OnTimeout::kError) {
          EXPECT_EQ(got, UpTo(static_cast<int>(got.size())));
          EXPECT_GE(got.size(), 3u);
          EXPECT_EQ(stage.stats().position, got.size());
        }
        if (ended) {
          EXPECT_EQ(got.size() + stage.stats().drops, size_t{kItems});
        }
      }
      Stage<int> other({.pool = ThePool()}, Count(3));  // the seat in the pool has been given back
      EXPECT_EQ(Drain(other), UpTo(3));
    }
    EXPECT_GT(failed, 0);
  }
}

TEST(StageNoMemoryTest, AProducerInOrder) { CountThrough({.capacity = 4}, true); }
TEST(StageNoMemoryTest, AProducerOfASourceWithOnePart) { CountThrough({.capacity = 4}, false); }
TEST(StageNoMemoryTest, AProducerOutOfOrder) { CountThrough({.capacity = 4, .ordered = false}, true); }
TEST(StageNoMemoryTest, AProducerWhoseItemsAreDropped) {
  CountThrough({.capacity = 1, .timeout = std::chrono::milliseconds(0), .on_timeout = OnTimeout::kDrop}, true);
}

TEST(StageNoMemoryTest, OneOfManyProducers) {
  for (int after = 0; after < 60; ++after) {
    Stage<int> stage({.capacity = 4, .num_threads = 3, .pool = ThePool()}, Refusing(after, false), Same);
    std::vector<int> got;
    TakeAll(stage, &got);
    EXPECT_EQ(got, UpTo(static_cast<int>(got.size())));
  }
}

// Each call of a consumer is tried until it needs no more memory. What it was refused it gets later.
TEST(StageNoMemoryTest, AConsumerLosesNothing) {
  for (const bool ordered : {true, false}) {
    Stage<int> stage({.capacity = 2, .num_clients = 3, .ordered = ordered}, Count(kItems), Same);
    std::vector<int> got;
    for (bool over = false; !over;) {
      for (int after = 0;; ++after) {
        ASSERT_LT(after, 100);
        const RefuseAfter refuse(after, true);
        try {
          const auto item = stage.Take();
          const bool refused = t_until_failure < 0;
          t_until_failure = -1;
          if (item) got.push_back(*item);
          over = !item;
          if (over || !refused) break;
        } catch (const std::bad_alloc&) {
        }
      }
    }
    EXPECT_EQ(got, UpTo(kItems));
  }
}

TEST(StageNoMemoryTest, AStartIsRefusedAndMayBeAskedForAgain) {
  for (int after = 0, whole = 0; whole < 2; ++after) {
    ASSERT_LT(after, 100);
    Stage<int> stage({.capacity = 2, .num_threads = 2}, Count(5), Same);
    try {
      const RefuseAfter refuse(after, true);
      stage.Start();
      ++whole;
    } catch (const std::bad_alloc&) {
      whole = 0;
    }
    EXPECT_EQ(Drain(stage), UpTo(5));
  }
}

TEST(StageNoMemoryTest, ARestartIsRefusedAndHasChangedNothing) {
  for (int after = 0, whole = 0; whole < 2; ++after) {
    ASSERT_LT(after, 100);
    Stage<int> stage({.capacity = 2}, Count(10), Same);
    EXPECT_EQ(stage.Take(), 0);
    bool restarted = true;
    try {
      const RefuseAfter refuse(after, true);
      stage.RestartWith(Count(5), Same);
    } catch (const std::bad_alloc&) {
      restarted = false;
    }
    whole += restarted;
    EXPECT_EQ(Drain(stage).size(), restarted ? 5u : 9u);
  }
}

TEST(StageNoMemoryTest, CancelAndCloseNeedNone) {
  for (const bool cancel : {true, false}) {
    Stage<int> stage({.capacity = 8, .num_threads = 2}, Count(100), Same);
    EXPECT_EQ(stage.Take(), 0);
    {
      const NoMemory none;
      cancel ? stage.Cancel() : stage.Close();
    }
    if (cancel) {
      EXPECT_THROW(stage.Take(), CancelledError);
    } else {
      EXPECT_LE(Drain(stage).size(), 11u);
    }
  }
}

// Whatever is refused in a call of Next, a step that has begun is handed out. One that has not begun comes with the next call, or the
// stage has failed for good, as any stage whose source is refused memory.
TEST(StageNoMemoryTest, ASmartStageLosesNoStep) {
  constexpr int kSteps = 12;
  int refused = 0, went_on = 0;
  for (int after = 0, whole = 0; whole < 3; ++after) {
    ASSERT_LT(after, 2000);
    TrainingProgram p;
    SmartStage steps(p.eng, p.graph, p.Rows(kSteps), {.profile_steps = 2, .guard_steps = 8});
    std::vector<std::pair<int, int>> got;
    bool ended = false, throws = false, in_an_op = false;
    int thrown = 0;
    while (!ended && thrown < 20) {
      Value given[] = {2};
      engine::Run run;
      try {
        std::optional<RefuseAfter> refuse;
        if (!throws) refuse.emplace(after, true);
        run = steps.Next(given);
        throws = false;
        ended = !run;
      } catch (const std::bad_alloc&) {
        throws = true;
        ++thrown;
        continue;
      }
      if (ended) break;
      try {
        const int sum = run.Take<int>(0);
        got.emplace_back(sum, run.Take<int>(1));
      } catch (const OpError&) {  // an op of the step, which this thread ran, was refused memory
        in_an_op = true;
        break;
      }
    }
    std::vector<std::pair<int, int>> expected = TrainingProgram::Expected(kSteps);
    if (!ended) expected.resize(got.size());
    EXPECT_EQ(got, expected) << "allocation " << after;
    if (!in_an_op) p.eng.WaitAll();  // no error is left
    refused += thrown > 0 || in_an_op;
    went_on += thrown > 0 && ended;
    whole = thrown > 0 || in_an_op ? 0 : whole + 1;
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(went_on, 0);
}

}  // namespace
}  // namespace engine::test
