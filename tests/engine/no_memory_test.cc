// What throws for want of memory has changed nothing, what may not throw needs none, and no error is lost. That of devices:
// no_memory_device_test.cc.
#include "support/no_memory.h"

#include "engine/bulk.h"
#include "engine/plan.h"
#include "support/child.h"
#include "support/on_device.h"
#include "support/seed.h"

namespace engine::test {
namespace {

class NoMemoryTest : public testing::TestWithParam<int> {
 protected:
  int workers() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Workers, NoMemoryTest, testing::Values(0, 1, 4));

// On a thread that has not used the engine, and gets no memory.
void OnANewThread(const std::function<void()>& f) {
  std::thread([&] {
    const NoMemory none;
    f();
  }).join();
}

// The gate opens on the thread that ends the op before it, and the run goes on.
TEST_P(NoMemoryTest, AGateOfARunOpensOnANewThread) {
  Engine eng(Quiet(workers()));
  const Var a = eng.NewVar("a"), b = eng.NewVar("b");
  int late = 0;  // guarded by b
  std::atomic<int> io{0};
  Graph graph;
  graph.Add({.name = "free", .updates = {a}}, [] {});
  graph.Add({.name = "late", .updates = {b}}, [&] { ++late; });
  graph.Add({.name = "late on a thread for I/O", .reads = {b}, .place = Io()}, [&] { ++io; });
  const Plan plan = graph.Compile(eng);
  std::vector<std::thread> threads;  // they stay, so that each one's blocks are its own
  Gate over;
  for (int i = 1; i <= 40; ++i) {
    Slot<Completion> on_b;
    eng.PushAsync({.writes = {b}}, [&](RunContext&, Completion done) { on_b.Put(std::move(done)); });
    engine::Run run = plan.Start();
    eng.Wait(a);
    eng.WaitFor(b, 0ns);  // without workers this call runs the op
    threads.emplace_back([&, done = on_b.Take()]() mutable {
      eng.Wait(a);
      {
        const NoMemory none;
        done();
      }
      over.Wait();
    });
    run.Wait();
    EXPECT_EQ(late, i);
    EXPECT_EQ(io, i);
  }
  over.Open();
  for (std::thread& thread : threads) thread.join();
}

TEST_P(NoMemoryTest, TheLastHandleMayGoOnANewThread) {
  Engine eng(Quiet(workers()));
  Var var = eng.NewVar("var");
  eng.Push({.writes = {var}}, [] {});
  eng.Wait(var);
  OnANewThread([&] { var = Var(); });
  eng.WaitAll();
}

TEST_P(NoMemoryTest, AVarMayBeDeletedOnANewThread) {
  Engine eng(Quiet(workers()));
  Var var = eng.NewVar("var");
  eng.Push({.writes = {var}}, [] {});
  eng.Wait(var);
  OnANewThread([&] { eng.Delete(var); });
  eng.WaitAll();
}

TEST_P(NoMemoryTest, ACompletionMayBeCalledOnANewThread) {
  Engine eng(Quiet(workers()));
  Var var = eng.NewVar("var");
  Completion kept;
  std::atomic<bool> there{false};
  eng.PushAsync({.writes = {var}}, [&](RunContext&, Completion done) {
    kept = std::move(done);
    there = true;
  });
  while (!there) eng.WaitAllFor(0ns);  // drives
  OnANewThread([&] { kept(); });
  eng.Wait(var);
}

TEST_P(NoMemoryTest, AHeldOpMayBeReleasedOnANewThread) {
  Engine eng(Quiet(workers()));
  Var var = eng.NewVar("var");
  HeldOp held = HoldWrite(eng, var);
  OnANewThread([&] { held.Release(); });
  eng.Wait(var);
}

TEST_P(NoMemoryTest, ARefusedPushHasChangedNothing) {
  Engine eng(Quiet(workers()));
  std::vector<Var> many(40);
  for (Var& var : many) var = eng.NewVar();
  const Var& var = many[0];
  std::atomic<int> ran{0};
  int accepted = 0, refused = 0;
  const auto push = [&](auto&& submit) {
    try {
      submit();
      ++accepted;
    } catch (const std::bad_alloc&) {
      ++refused;
    }
  };
  HeldOp first = HoldWrite(eng, var);
  {
    const NoMemory none;
    for (int i = 0; i < 1000; ++i) {
      push([&] { eng.Push({.updates = {var}}, [&] { ++ran; }); });
      push([&] { eng.Push({.reads = {var}}, [&] { ++ran; }); });
      push([&] { eng.Push({.updates = many}, [&] { ++ran; }); });
      push([&] { static_cast<void>(eng.PushHeld({.updates = {var}}, [&] { ++ran; })); });
    }
  }
  first.Release();
  eng.WaitAll();
  EXPECT_EQ(accepted, ran);
  EXPECT_GT(refused, 0);
}

TEST_P(NoMemoryTest, ABulkHoldsWhatItHasTaken) {
  Engine eng(OnDevice(workers()));
  Var var = eng.NewVar("var");
  std::atomic<int> ran{0};
  int accepted = 0;
  {
    Bulk bulk(eng, 100);
    eng.Push({.updates = {var}, .place = Gpu(0)}, [&] { ++ran; });  // the device has its threads
    ++accepted;
    const NoMemory none;
    for (int i = 0; i < 2000; ++i) {
      try {
        eng.Push({.updates = {var}, .place = Gpu(0)}, [&] { ++ran; });
        ++accepted;
      } catch (const std::bad_alloc&) {
      }
    }
  }
  eng.WaitAll();
  EXPECT_EQ(accepted, ran);
}

// In children: what is made once a process, the thread that watches bulks for instance, is made there. `push` gets a body.
void FailAtEachAllocation(int workers, const std::function<void(Engine&, const Var&, std::function<void()>)>& push) {
  constexpr int kMore = 50;  // than a first push makes
  for (int good = 0; good < kMore && !testing::Test::HasFailure(); ++good) {
    EXPECT_TRUE(InChild([&] {
      Engine eng(OnDevice(workers));
      const Var var = eng.NewVar("var");
      std::atomic<int> ran{0};
      const auto attempt = [&] {
        const int before = ran;
        bool accepted = true;
        try {
          push(eng, var, [&] { ++ran; });
        } catch (const std::bad_alloc&) {
          accepted = false;
        }
        t_until_failure = -1;
        eng.WaitAll();
        return ran - before == (accepted ? 1 : 0);
      };
      t_until_failure = good;
      return attempt() && attempt() && eng.stats().pushed == eng.stats().completed;
    })) << "after "
        << good << " allocations";
  }
}

TEST_P(NoMemoryTest, AtWhicheverAllocationAPushFailsTheOpWasPushedOrWasNot) {
  if (WhyNoForks()) GTEST_SKIP() << WhyNoForks();
  using Body = std::function<void()>;
  struct Way {
    const char* name;
    std::function<void(Engine&, const Var&, Body)> push;
  };
  const std::vector<Way> ways = {
      {"plain", [](Engine& eng, const Var& v, Body f) { eng.Push({.updates = {v}}, std::move(f)); }},
      {"scoped, large, with priority",
       [](Engine& eng, const Var& v, Body f) {
         CancelScope scope;
         eng.Push({.updates = {v}, .priority = 1, .cancel = &scope},
                  [f = std::move(f), large = std::array<char, 2000>{}] {
                    (void)large;
                    f();
                  });
       }},
      {"many Vars",
       [](Engine& eng, const Var& v, Body f) {
         std::vector<Var> vars{v};
         const int fails_in = std::exchange(t_until_failure, -1);
         for (int i = 0; i < 60; ++i) vars.push_back(eng.NewVar());
         t_until_failure = fails_in;
         eng.Push({.reads = vars}, std::move(f));
       }},
      {"for I/O", [](Engine& eng, const Var& v, Body f) { eng.Push({.updates = {v}, .place = Io()}, std::move(f)); }},
      {"with a completion",
       [](Engine& eng, const Var& v, Body f) {
         eng.PushAsync({.updates = {v}}, [f = std::move(f)](RunContext&, Completion done) {
           f();
           done();
         });
       }},
      {"if there is room",
       [](Engine& eng, const Var& v, Body f) { EXPECT_TRUE(eng.TryPush({.updates = {v}}, std::move(f))); }},
      {"held",
       [](Engine& eng, const Var& v, Body f) { static_cast<void>(eng.PushHeld({.updates = {v}}, std::move(f))); }},
      {"held together",
       [](Engine& eng, const Var& v, Body f) { HeldOps(eng).Push({.updates = {v}, .place = Gpu(0)}, std::move(f)); }},
      {"for the host, past what is held together",
       [](Engine& eng, const Var& v, Body f) {
         HeldOps held(eng);
         held.Push({.updates = {v}, .place = Gpu(0)}, [] {});
         held.Push({.updates = {v}}, std::move(f));
       }},
      {"the first of a bulk",
       [](Engine& eng, const Var& v, Body f) {
         const Bulk bulk(eng, 100);
         eng.Push({.updates = {v}, .place = Gpu(0)}, std::move(f));
       }},
      {"behind a bulk of another",
       [](Engine& eng, const Var& v, Body f) {
         const int fails_in = std::exchange(t_until_failure, -1);
         Bulk bulk(eng, 100);
         bulk.Push({.updates = {v}, .place = Gpu(0)}, [] {});
         t_until_failure = fails_in;
         std::exception_ptr error;
         std::thread other;
         {
           const int mine = std::exchange(t_until_failure, -1);
           other = std::thread([&, mine] {
             t_until_failure = mine;
             try {
               eng.Push({.updates = {v}}, std::move(f));
             } catch (...) {
               error = std::current_exception();
             }
           });
         }
         other.join();
         if (error) std::rethrow_exception(error);
       }},
      {"at its push",
       [](Engine& eng, const Var& v, Body f) {
         const PolicyScope naive = eng.EnterPolicy({.policy = Policy::kNaive});
         eng.Push({.updates = {v}}, std::move(f));
       }},
  };
  for (const Way& way : ways) {
    SCOPED_TRACE(way.name);
    FailAtEachAllocation(workers(), way.push);
  }
}

TEST_P(NoMemoryTest, ABodysErrorIsKept) {
  if (workers() == 0) GTEST_SKIP() << "the body would run on the thread that waits";
  Engine eng(Quiet(workers()));
  Var var = eng.NewVar("var");
  eng.Push({.name = "fails", .writes = {var}}, [] {
    t_fails = true;
    throw std::bad_alloc();
  });
  const OpError error = ErrorOf([&] { eng.Wait(var); });
  EXPECT_EQ(error.op(), "fails");
  EXPECT_TRUE(CausedBy<std::bad_alloc>(error));
}

// An op that is skipped without memory passes on the record of the op that failed, and has none of its own.
TEST_P(NoMemoryTest, AnErrorThatIsPassedOnStandsThereOnce) {
  if (workers() == 0) GTEST_SKIP() << "the body would run on the thread that waits";
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  HeldOp held = HoldWrite(eng, a);
  eng.Push({.name = "fails", .updates = {a}}, [] {
    t_fails = true;
    throw std::bad_alloc();
  });
  eng.Push({.name = "is skipped", .reads = {a}, .writes = {b}}, [] {});  // by the same thread, at once
  held.Release();
  while (eng.stats().completed < 3) std::this_thread::yield();
  EXPECT_EQ(eng.stats().unseen_errors, 1u);
  EXPECT_EQ(ErrorOf([&] { eng.Wait(b); }).op(), "fails");
  EXPECT_EQ(eng.stats().unseen_errors, 0u);
}

TEST_P(NoMemoryTest, AFailedCompletionEndsItsOp) {
  Engine eng(Quiet(workers()));
  Var var = eng.NewVar("var");
  Completion kept;
  std::atomic<bool> there{false};
  eng.PushAsync({.name = "fails", .writes = {var}}, [&](RunContext&, Completion done) {
    kept = std::move(done);
    there = true;
  });
  while (!there) eng.WaitAllFor(0ns);
  const auto cause = std::make_exception_ptr(std::runtime_error("why"));
  {
    const NoMemory none;
    kept.Fail(cause);
  }
  EXPECT_TRUE(Has(ErrorOf([&] { eng.Wait(var); }).what(), "why"));
}

TEST_P(NoMemoryTest, AWaitThatCannotShowAnErrorLeavesItForTheNext) {
  Engine eng(Quiet(workers()));
  Var var = eng.NewVar("var");
  Fail(eng, var, "a text that is too long for a string that needs no memory of its own, by far");
  Var other = eng.NewVar("other");
  HeldOp held = HoldWrite(eng, other);
  while (eng.stats().completed < 1) eng.WaitFor(other, 0ns);  // drives, and shows nothing
  held.Release();
  eng.Wait(other);
  {
    const NoMemory none;
    EXPECT_THROW(eng.Wait(var), std::bad_alloc);
    EXPECT_THROW(eng.WaitAll(), std::bad_alloc);
  }
  EXPECT_EQ(eng.stats().unseen_errors, 1u);
  EXPECT_TRUE(Has(ErrorOf([&] { eng.WaitAll(); }).what(), "by far"));
  EXPECT_TRUE(Has(ErrorOf([&] { eng.Wait(var); }).what(), "by far"));
}

// Every allocation of every thread may fail, but for those of the asserts.
void RunWithFailures(int workers, uint32_t one_in) {
  SCOPED_TRACE(SeedLine());
  g_seed = Seed();
  std::atomic<int> ran{0};
  int accepted = 0;
  {
    Engine eng(Quiet(workers));
    std::vector<Var> vars(24);
    for (Var& var : vars) var = eng.NewVar("var");
    const auto at = [&](int i) -> const Var& { return vars[static_cast<size_t>(i) % vars.size()]; };
    const auto attempt = [&](auto&& f) {
      try {
        f();
        return true;
      } catch (const std::bad_alloc&) {
      } catch (const OpError&) {
      }
      return false;
    };
    g_one_in = one_in;
    for (int i = 0; i < (kSanitized ? 1500 : 15000); ++i) {
      const auto body = [&ran, i] {
        ++ran;
        if (i % 50 == 0) throw 1;
      };
      accepted += attempt([&] {
        if (i % 7 == 0) {
          eng.Push({.updates = vars, .run_always = true}, body);
        } else if (i % 11 == 0) {
          static_cast<void>(eng.PushHeld({.reads = {at(i)}, .run_always = true}, body));
        } else {
          eng.Push({.reads = {at(i)}, .updates = {at(3 * i + 1)}, .writes = {at(5 * i)}, .run_always = true}, body);
        }
      });
      if (i % 100 == 0) attempt([&] { eng.Wait(at(i)); });
      if (i % 300 == 0) attempt([&] { eng.WaitAllFor(1ms); });
      if (i % 50 == 0)
        attempt([&] {
          const Var own = eng.NewVar();
          accepted += attempt([&] { eng.Push({.writes = {own}}, [&ran] { ++ran; }); });
        });
    }
    g_one_in = 0;
    while (!attempt([&] { eng.WaitAll(); })) {
    }
  }
  EXPECT_EQ(ran, accepted);
}
TEST_P(NoMemoryTest, AllocationsFailAtRandomSeldom) { RunWithFailures(workers(), 500); }
TEST_P(NoMemoryTest, AllocationsFailAtRandomOften) { RunWithFailures(workers(), 10); }

}  // namespace
}  // namespace engine::test
