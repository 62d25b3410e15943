// Order, as MXNet's own C++ test of its engines asks for it: random programs against a serial oracle, operators, versions,
// deletion while ops are pending, stop and start; and the programs that hang there.
#include <atomic>
#include <random>

#include "drop_in_test.h"
#include "support/seed.h"

namespace engine_mxnet::test {
namespace {

WITH_WORKERS(OrderTest);

struct Step {
  std::vector<size_t> reads;
  size_t write;
};

void Evaluate(const Step& step, std::vector<double>& data) {
  double sum = 0;
  for (size_t i : step.reads) sum += data[i];
  data[step.write] = sum / static_cast<double>(step.reads.size() + 1);
}

TEST_P(OrderTest, RandomProgramsEqualTheSerialOracle) {
  std::mt19937_64 random(engine::test::Seed());
  constexpr size_t kVars = 100;
  std::vector<Step> program(engine::test::kSanitized ? 1000 : 10000);
  for (Step& step : program) {
    step.write = random() % kVars;
    step.reads.resize(2 + random() % 18);
    for (size_t& read : step.reads) read = random() % kVars;  // also twice, also what is written
  }
  std::vector<double> expected(kVars, 1.0);
  for (const Step& step : program) Evaluate(step, expected);
  for (const Kind kind : {Kind::kPerDevice, Kind::kPooled, Kind::kNaive}) {
    const auto eng = Make(GetParam(), kind);
    std::vector<double> data(kVars, 1.0);
    abi::Vars vars;
    for (size_t i = 0; i < kVars; ++i) vars.push_back(eng->NewVariable());
    for (size_t i = 0; i < program.size(); ++i) {
      const Step& step = program[i];
      abi::Vars reads;
      for (size_t read : step.reads) reads.push_back(vars[read]);
      if (i % 3) {
        Async(*eng,
              [&](abi::RunContext, abi::OnComplete done) {
                Evaluate(step, data);
                Call(done);
              },
              reads, {vars[step.write]});
      } else {
        Sync(*eng, [&](abi::RunContext) { Evaluate(step, data); }, reads, {vars[step.write]});
      }
    }
    for (abi::Var* var : vars) Delete(*eng, var);  // while ops on them are pending
    eng->WaitForAll();
    EXPECT_EQ(data, expected);
  }
}

// What is deleted frees memory, and nothing waits for it: behind other ready ops, a program that pushes ahead would fill the memory.
TEST(DeletionTest, ComesBeforeOtherReadyOps) {
  const auto eng = Make(1);
  Gate gate;
  std::vector<std::string> order;
  const abi::Vars kept{eng->NewVariable()}, others{eng->NewVariable(), eng->NewVariable()};
  abi::Var* const gone = eng->NewVariable();
  Sync(
      *eng, [&](abi::RunContext) { gate.Wait(); }, {gone}, kept);
  for (abi::Var* var : others) Sync(*eng, [&](abi::RunContext) { order.push_back("op"); }, {}, {var});
  Sync(
      *eng, [&](abi::RunContext) { order.push_back("behind"); }, {}, kept);
  eng->DeleteVariable([&](abi::RunContext) { order.push_back("deletion"); }, {}, gone);
  gate.Open();
  eng->WaitForAll();
  ASSERT_EQ(order.size(), 4u);
  EXPECT_EQ(order.front(), "deletion");
  for (abi::Var* var : {kept[0], others[0], others[1]}) Delete(*eng, var);
  eng->WaitForAll();
}

TEST_P(OrderTest, VersionsCountWritesAndNotReads) {
  for (const Kind kind : {Kind::kPerDevice, Kind::kPooled, Kind::kNaive}) {
    const auto eng = Make(GetParam(), kind);
    abi::Var* var = eng->NewVariable();
    for (const bool write : {false, true}) {
      std::vector<abi::Opr*> ops;
      const abi::Vars vars{var}, none;
      for (int i = 0; i < 10; ++i) {
        ops.push_back(eng->NewOperator([](abi::RunContext, abi::OnComplete done) { Call(done); }, write ? none : vars,
                                       write ? vars : none, abi::Property::kNormal, nullptr, false));
        eng->Push(ops.back(), {}, 0, false);
      }
      eng->WaitForAll();
      EXPECT_EQ(var->version(), write ? 10u : 0u);
      for (abi::Opr* op : ops) eng->DeleteOperator(op);
    }
    Delete(*eng, var);
    eng->WaitForAll();
  }
}

TEST_P(OrderTest, OperatorDeletedWhilePushesOfItArePendingRunsForEach) {
  abi::Var* var = NewVar();
  Gate gate;
  std::atomic<int> ran = 0;
  Sync(*eng_, [&](abi::RunContext) { gate.Wait(); }, {}, {var});
  const auto alive = std::make_shared<int>(0);
  abi::Opr* op = eng_->NewOperator(
      [&ran, alive](abi::RunContext, abi::OnComplete done) {
        ++ran;
        Call(done);
      },
      {}, {var}, abi::Property::kNormal, "again", false);
  for (int i = 0; i < 5; ++i) eng_->Push(op, {}, 0, false);
  eng_->DeleteOperator(op);
  EXPECT_EQ(alive.use_count(), 2);
  gate.Open();
  eng_->WaitForAll();
  EXPECT_EQ(ran, 5);
  EXPECT_EQ(alive.use_count(), 1);
}

TEST_P(OrderTest, DeletionRunsBehindAllThatIsPendingEvenBehindAFailure) {
  abi::Var* var = eng_->NewVariable();
  Gate gate;
  std::atomic<int> readers = 0, seen = -1;
  Sync(*eng_,
       [&](abi::RunContext) {
         gate.Wait();
         throw dmlc::Error("broken");
       },
       {}, {var});
  Sync(
      *eng_, [&](abi::RunContext) { ++readers; }, {var}, {}, abi::Property::kNoSkip);
  eng_->DeleteVariable([&](abi::RunContext) { seen = readers.load(); }, {}, var);
  gate.Open();
  TextOf([&] { eng_->WaitForAll(); });
  EXPECT_EQ(seen, 1);
}

TEST_P(OrderTest, StopFinishesAllAndPushesGoOnBehindStart) {
  abi::Var* var = NewVar();
  std::atomic<int> ran = 0;
  for (int i = 0; i < 100; ++i) Sync(*eng_, [&](abi::RunContext) { ++ran; }, {}, {var});
  eng_->Stop();
  EXPECT_EQ(ran, 100);
  Sync(*eng_, [&](abi::RunContext) { ++ran; }, {}, {var});
  EXPECT_EQ(ran, 100);
  eng_->Start();
  eng_->WaitForVar(var);
  EXPECT_EQ(ran, 101);
}

// --- threads and priorities

TEST_P(OrderTest, AsManyOpsRunAtOnceAsThereAreWorkers) {
  const int workers = GetParam();
  Counter inside;
  for (int i = 0; i < workers; ++i)
    Sync(*eng_,
         [&](abi::RunContext) {
           inside.Add();
           inside.WaitFor(workers);
         },
         {}, {NewVar()});
  eng_->WaitForAll();
}

TEST_P(OrderTest, PrioritizedOpsAndThoseOfOtherDevicesRunWhileAllWorkersAreBusy) {
  Gate gate;
  for (int i = 0; i < GetParam(); ++i) Sync(*eng_, [&](abi::RunContext) { gate.Wait(); }, {}, {NewVar()});
  Gate prioritized, elsewhere;
  Sync(
      *eng_, [&](abi::RunContext) { prioritized.Open(); }, {}, {NewVar()}, abi::Property::kCpuPrioritized);
  eng_->PushSync([&](abi::RunContext) { elsewhere.Open(); }, {1, 1}, {}, {NewVar()}, abi::Property::kNormal, 0,
                 nullptr);
  prioritized.Wait();
  elsewhere.Wait();
  gate.Open();
  eng_->WaitForAll();
}

TEST(PriorityTest, ReadyOpsRunByTheirPrioritiesInFiveLevels) {
  const auto eng = Make(1);
  abi::Var* const busy = eng->NewVariable();
  Gate gate, entered;
  Sync(*eng,
       [&](abi::RunContext) {
         entered.Open();
         gate.Wait();
       },
       {}, {busy});
  entered.Wait();
  std::vector<int> order;  // one worker: no other thread writes it
  for (const int priority : {-100, 100, 0, -1, 1, -60, 60})
    Sync(
        *eng, [&, priority](abi::RunContext) { order.push_back(priority); }, {}, {}, abi::Property::kNormal, nullptr,
        priority);
  gate.Open();
  eng->WaitForAll();
  EXPECT_EQ(order, (std::vector<int>{100, 60, 1, 0, -1, -100, -60}));  // the outer halves are one level each
  Delete(*eng, busy);
}

TEST_P(OrderTest, OpsOfABulkKeepTheirNamesAndFailAlone) {
  abi::Var *a = NewVar(), *b = NewVar(), *c = NewVar();
  Gate gate;
  std::atomic<int> ran = 0;
  eng_->set_bulk_size(15);
  Sync(
      *eng_, [&](abi::RunContext) { gate.Wait(); }, {}, {a, b, c}, abi::Property::kNormal, "first of them");
  Sync(
      *eng_, [](abi::RunContext) { throw dmlc::Error("broken"); }, {}, {a}, abi::Property::kNormal, "second of them");
  Sync(
      *eng_, [&](abi::RunContext) { ++ran; }, {}, {b}, abi::Property::kNormal, "third of them");
  Sync(
      *eng_, [&](abi::RunContext) { ++ran; }, {a}, {c}, abi::Property::kNormal, "behind the second");
  const std::string pending = DropInOf(*eng_).engine().DescribePending();
  for (const char* name : {"first of them", "second of them", "third of them", "behind the second"})
    EXPECT_NE(pending.find(name), std::string::npos) << pending;
  gate.Open();
  eng_->set_bulk_size(0);
  eng_->WaitForVar(b);
  EXPECT_EQ(TextOf([&] { eng_->WaitForVar(c); }), "broken");
  EXPECT_EQ(ran, 1);
  EXPECT_EQ(FailuresOf(*eng_).log().back().op, "second of them");
}

TEST(BoundTest, APushWaitsWhileAsManyOpsArePendingAsTheVariableSays) {
  setenv("ENGINE_MAX_PENDING", "8", 1);
  const auto eng = Make(1);
  unsetenv("ENGINE_MAX_PENDING");
  abi::Var* const var = eng->NewVariable();
  Gate gate;
  std::atomic<int> pushed = 0, ran = 0;
  std::thread pusher([&] {
    for (int i = 0; i < 100; ++i, ++pushed)
      Sync(*eng,
           [&](abi::RunContext) {
             gate.Wait();
             ++ran;
           },
           {}, {var});
  });
  while (DropInOf(*eng).engine().stats().backpressure_waits == 0) std::this_thread::yield();
  EXPECT_EQ(pushed, 8);
  gate.Open();
  pusher.join();
  eng->WaitForAll();
  EXPECT_EQ(ran, 100);
  Delete(*eng, var);
}

// --- what hangs in MXNet

TEST_P(OrderTest, FourThreadsPushOverlappingSetsInOppositeOrder) {
  abi::Var *x = NewVar(), *y = NewVar();
  const int ops = engine::test::kSanitized ? 300 : 3000;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < ops; ++i) {
        Async(
            *eng_, [](abi::RunContext, abi::OnComplete done) { Call(done); }, {},
            t % 2 ? abi::Vars{x, y} : abi::Vars{y, x});
      }
    });
  for (auto& thread : threads) thread.join();
  eng_->WaitForAll();
  EXPECT_EQ(x->version(), static_cast<size_t>(4 * ops));
}

TEST_P(OrderTest, OpThatReadsAndWritesOneVarOrWritesItTwiceRuns) {
  abi::Var* x = NewVar();
  Sync(*eng_, [](abi::RunContext) {}, {x}, {x});
  Sync(*eng_, [](abi::RunContext) {}, {x, x}, {x, x});
  eng_->WaitForVar(x);
  EXPECT_EQ(x->version(), 2u);
}

TEST_P(OrderTest, FunctionMayPushAndWait) {
  abi::Var *x = NewVar(), *y = NewVar();
  Sync(*eng_,
       [&](abi::RunContext) {
         Sync(*eng_, [](abi::RunContext) {}, {}, {y});
         eng_->WaitForVar(y);
       },
       {}, {x});
  eng_->WaitForVar(x);
  EXPECT_EQ(y->version(), 1u);
}

TEST_P(OrderTest, WaitForAllCoversWhatRunningFunctionsPush) {
  abi::Var *x = NewVar(), *y = NewVar(), *z = NewVar();
  Gate gate;
  std::atomic<bool> ran = false;
  Sync(*eng_,
       [&](abi::RunContext) {
         gate.Wait();
         Sync(*eng_, [&](abi::RunContext) { Sync(*eng_, [&](abi::RunContext) { ran = true; }, {}, {z}); }, {}, {y});
       },
       {}, {x});
  std::thread opener([&] { gate.Open(); });
  eng_->WaitForAll();
  EXPECT_TRUE(ran);
  opener.join();
}

// As MXNet's custom operators do, on threads of their own: such a thread pushes, and then ends the op.
TEST_P(OrderTest, WaitForAllCoversWhatAThreadPushedThatEndsAnOp) {
  abi::Var *x = NewVar(), *y = NewVar();
  std::atomic<int> ran = 0;
  for (int round = 0; round < 20; ++round) {
    const bool before_the_function_returns = round % 2;
    Gate left, go, called, gate;
    abi::OnComplete kept{};
    Async(*eng_,
          [&](abi::RunContext, abi::OnComplete done) {
            kept = done;
            left.Open();
            if (before_the_function_returns) called.Wait();
          },
          {}, {x});
    std::thread other([&] {
      left.Wait();
      go.Wait();
      Sync(*eng_,
           [&](abi::RunContext) {
             gate.Wait();
             ++ran;
           },
           {}, {y});
      Call(kept);
      called.Open();
    });
    std::thread opener([&] {
      for (int i = 0; i < 200; ++i) std::this_thread::yield();  // WaitForAll begins meanwhile, mostly
      go.Open();
      eng_->WaitForVar(x);
      gate.Open();
    });
    eng_->WaitForAll();
    EXPECT_EQ(ran, round + 1);
    other.join();
    opener.join();
  }
}

TEST_P(OrderTest, ManyVarsMadeAndDroppedKeepMemoryFlat) {
  const auto round = [&] {
    for (int i = 0; i < 20000; ++i) {
      abi::Var* var = eng_->NewVariable();
      Sync(*eng_, [](abi::RunContext) {}, {}, {var});
      Delete(*eng_, var);
    }
    eng_->WaitForAll();
  };
  const auto resident = [] {
    long pages = 0;
    if (FILE* statm = std::fopen("/proc/self/statm", "r")) {
      if (std::fscanf(statm, "%*d %ld", &pages) != 1) pages = 0;
      std::fclose(statm);
    }
    return pages;
  };
  round();
  const long before = resident();
  for (int i = 0; i < (engine::test::kSanitized ? 2 : 10); ++i) round();
  if (!engine::test::kSanitized) {
    EXPECT_LT(resident() - before, 2048);  // 8 MB
  }
}

}  // namespace
}  // namespace engine_mxnet::test
