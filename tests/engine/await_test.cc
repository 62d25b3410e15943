// co_await on Vars, Data and executors.
#include "engine/await.h"

#include <exception>
#include <memory>

#include "engine/bulk.h"
#include "engine/executor.h"
#include "engine/graph.h"
#include "support/engine_test.h"

namespace engine::test {
namespace {

WITH_ALL_WORKERS(AwaitTest);

// A coroutine that starts at once, and what became of it.
struct Job {
  struct State {
    std::atomic<bool> over{false};
    std::exception_ptr error;
  };
  struct promise_type {
    std::shared_ptr<State> state = std::make_shared<State>();
    Job get_return_object() { return {state}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() { state->over = true; }
    void unhandled_exception() {
      state->error = std::current_exception();
      state->over = true;
    }
  };
  std::shared_ptr<State> state;
  bool over() const { return state->over; }
  void Rethrow() const {
    ASSERT_TRUE(over());
    if (state->error) std::rethrow_exception(state->error);
  }
};

Job Add(Data<int> from, Data<int> more, int* sum) {
  *sum = co_await from;
  *sum += co_await more;
}

TEST_P(AwaitTest, ACoroutineGoesOnWhenTheDataIsThere) {
  Engine eng(Quiet(workers()));
  Data<int> a(eng, "a"), b(eng, "b");
  Var gate = eng.NewVar("gate");
  HeldOp held = HoldWrite(eng, gate);
  eng.Push(reads(gate), writes(a), [](int& n) { n = 40; });
  eng.Push(writes(b), [](int& n) { n = 2; });
  int sum = 0;
  const Job job = Add(a, b, &sum);
  EXPECT_FALSE(job.over());  // and this thread has not waited
  held.Release();
  eng.WaitAll();
  eng.WaitAll();  // the body that goes on behind `a` pushes the one that goes on behind `b`
  job.Rethrow();
  EXPECT_EQ(sum, 42);
}

Job AwaitVar(Var var, std::thread::id* thread, uint64_t* version) {
  co_await var;
  *thread = std::this_thread::get_id();
  *version = var.version();
}

TEST_P(AwaitTest, ItGoesOnOnAWorkerAlsoWhereNothingIsPending) {
  Engine eng(Quiet(workers()));
  Var var = eng.NewVar("var");
  eng.Push({.writes = {var}}, [] {});
  eng.Wait(var);
  std::thread::id thread;
  uint64_t version = 0;
  const Job job = AwaitVar(var, &thread, &version);
  eng.WaitAll();
  job.Rethrow();
  EXPECT_EQ(version, 1u);
  EXPECT_EQ(thread == std::this_thread::get_id(), workers() == 0);  // without workers the waiter drives
}

Job LookTwice(Data<int> data, Gate* open, int* first, int* second) {
  const int& seen = co_await data;
  *first = seen;
  if (open) open->Wait();
  *second = seen;
}

TEST(AwaitOrderTest, LaterWritesWaitUntilTheCoroutineSuspendsOrEnds) {
  Engine eng(Quiet(2));
  Data<int> data(eng, "data", 1);
  Gate open;
  int first = 0, second = 0;
  const Job job = LookTwice(data, &open, &first, &second);
  eng.Push(updates(data), [](int& n) { n = 2; });
  EXPECT_FALSE(Done(eng, data));
  open.Open();
  EXPECT_EQ(eng.Wait(data), 2);
  eng.WaitAll();
  job.Rethrow();
  EXPECT_EQ(first, 1);
  EXPECT_EQ(second, 1);
}

TEST_P(AwaitTest, ErrorsAreRethrownInTheCoroutine) {
  Engine eng(Quiet(workers()));
  Data<int> data(eng, "data");
  eng.Push({.name = "open"}, writes(data), [](int&) { throw std::runtime_error("no such file"); });
  int first = 0, second = 0;
  const Job job = LookTwice(data, nullptr, &first, &second);
  try {
    eng.WaitAll();  // the coroutine has seen the error, or has not yet
  } catch (const OpError&) {
    eng.WaitAll();
  }
  const OpError e = ErrorOf([&] { job.Rethrow(); });
  EXPECT_EQ(e.op(), "open");
  EXPECT_TRUE(CausedBy<std::runtime_error>(e));
}

Job GoOnAfter(Data<int> data, int* seen) {
  try {
    co_await data;
  } catch (const OpError&) {
    *seen = -1;
  }
}

TEST_P(AwaitTest, ACoroutineMayHandleTheError) {
  Engine eng(Quiet(workers()));
  Data<int> data(eng, "data");
  Fail(eng, data);
  int seen = 0;
  const Job job = GoOnAfter(data, &seen);
  EXPECT_THROW(eng.Wait(data), OpError);
  eng.WaitAll();
  job.Rethrow();
  EXPECT_EQ(seen, -1);
}

TEST_P(AwaitTest, ACancelledScopeIsThrownInTheCoroutine) {
  Engine eng(Quiet(workers()));
  Data<int> data(eng, "data");
  HeldOp held = HoldWrite(eng, data);
  CancelScope scope;
  int first = 0, second = 0;
  const Job job = [&] {
    const auto guard = scope.Enter();
    return LookTwice(data, nullptr, &first, &second);
  }();
  scope.Cancel();
  held.Release();
  eng.WaitAll();
  EXPECT_THROW(job.Rethrow(), CancelledError);
}

TEST_P(AwaitTest, ShutdownRunsWhatIsSuspendedAndRefusesWhatComesLater) {
  Engine eng(Quiet(workers()));
  Data<int> a(eng, "a", 1), b(eng, "b", 2);
  HeldOp held = HoldWrite(eng, a);
  int sum = 0;
  const Job job = Add(a, b, &sum);  // its second co_await comes while the engine drains
  eng.Shutdown();
  job.Rethrow();
  EXPECT_EQ(sum, 3);
  const Job late = Add(a, b, &sum);
  EXPECT_THROW(late.Rethrow(), UsageError);
}

TEST_P(AwaitTest, ACompletionThatNeverComesFailsTheCoroutineAtShutdown) {
  EngineOptions options = Quiet(workers());
  options.drain_timeout = 1ms;
  Engine eng(options);
  Data<int> data(eng, "data");
  Completion kept;
  eng.PushAsync({.writes = data}, [&kept](RunContext&, Completion done) { kept = std::move(done); });
  int first = 0, second = 0;
  const Job job = LookTwice(data, nullptr, &first, &second);
  eng.Shutdown();
  EXPECT_TRUE(CausedBy<ShutdownError>(ErrorOf([&] { job.Rethrow(); })));
}

TEST(AwaitRefusalTest, NullAndDeletedVarsAreRefusedWhereTheyAreAwaited) {
  Engine eng(Quiet(1));
  std::thread::id thread;
  uint64_t version = 0;
  const Job null = AwaitVar(Var(), &thread, &version);
  const std::string text = RefusalOf([&] { null.Rethrow(); });
  EXPECT_TRUE(Has(text, "null Var"));
  EXPECT_TRUE(Has(text, "await_test.cc"));
  Var gone = eng.NewVar("gone"), stale = gone;
  eng.Delete(gone);
  const Job deleted = AwaitVar(stale, &thread, &version);
  EXPECT_TRUE(Has(RefusalOf([&] { deleted.Rethrow(); }), "'gone'"));
}

Job Count(Data<int> data, int times, int* count) {
  for (int i = 0; i < times; ++i) {
    co_await data;
    ++*count;
  }
}

TEST_P(AwaitTest, ManyAwaitsDoNotPileUpOnOneStackUnderAnyPolicy) {
  for (const Policy policy : {Policy::kThreaded, Policy::kInline, Policy::kNaive}) {
    EngineOptions options = Quiet(workers());
    options.policy = policy;
    Engine eng(options);
    Data<int> data(eng, "data", 0);
    int count = 0;
    const Job job = Count(data, 20000, &count);
    eng.Shutdown();
    job.Rethrow();
    EXPECT_EQ(count, 20000);
  }
}

TEST_P(AwaitTest, BulkAndCaptureLeaveCoroutinesAlone) {
  Engine eng(Quiet(workers()));
  Data<int> data(eng, "data", 0);
  int in_bulk = 0, in_capture = 0;
  Bulk bulk(eng, 1000);
  const Job bulked = Count(data, 3, &in_bulk);
  eng.Shutdown();
  bulked.Rethrow();
  EXPECT_EQ(in_bulk, 3);

  Engine other(Quiet(workers()));
  Data<int> more(other, "more", 0);
  Graph graph;
  {
    Capture capture(graph);
    const Redirect redirect(other, capture);
    (void)Count(more, 1, &in_capture);
  }
  other.WaitAll();
  EXPECT_EQ(in_capture, 1);
  EXPECT_TRUE(graph.nodes().empty());
}

// --- executors

Job OnIo(Engine& eng, Data<int> data, std::string* name) {
  co_await Executor(eng, Io()).schedule();
  const int& n = co_await ResumeOn(Io(), data);
  *name = std::to_string(n);
}

TEST_P(AwaitTest, AnExecutorRunsFunctionsAndResumesCoroutinesWhereItSays) {
  Engine eng(Quiet(workers()));
  Data<int> data(eng, "data", 7);
  std::string name;
  std::atomic<int> ran{0};
  const Executor executor(eng), io(eng, Io());
  EXPECT_TRUE(executor == Executor(eng, Cpu()));
  EXPECT_FALSE(executor == io);
  for (int i = 0; i < 10; ++i) {
    executor.execute([&ran] { ++ran; });
    io.execute([&ran, only = std::make_unique<int>(1)](RunContext&) { ran += *only; });
  }
  const Job job = OnIo(eng, data, &name);
  eng.Shutdown();
  job.Rethrow();
  EXPECT_EQ(ran, 20);
  EXPECT_EQ(name, "7");
}

TEST(ExecutorTest, WhatAFunctionThrowsIsTheFailureOfItsOp) {
  Engine eng(Quiet(1));
  Executor(eng).execute([] { throw std::runtime_error("broken"); });
  const OpError e = ErrorOf([&] { eng.WaitAll(); });
  EXPECT_EQ(e.op(), "execute");
  EXPECT_TRUE(Has(e.site().file, "await_test.cc"));
}

TEST(ExecutorTest, NothingRunsInsideTheCallUnderAnyPolicy) {
  for (const Policy policy : {Policy::kInline, Policy::kNaive}) {
    EngineOptions options = Quiet(1);
    options.policy = policy;
    Engine eng(options);
    bool ran = false;
    Executor(eng).execute([&ran] { ran = true; });
    EXPECT_FALSE(ran);
    eng.WaitAll();
    EXPECT_TRUE(ran);
  }
}

TEST(ExecutorTest, ACancelledScopeIsThrownBySchedule) {
  Engine eng(Quiet(1));
  CancelScope scope;
  scope.Cancel();
  Data<int> data(eng, "data", 7);
  std::string name;
  const Job job = [&] {
    const auto guard = scope.Enter();
    return OnIo(eng, data, &name);
  }();
  eng.Shutdown();
  EXPECT_THROW(job.Rethrow(), CancelledError);
}

}  // namespace
}  // namespace engine::test
