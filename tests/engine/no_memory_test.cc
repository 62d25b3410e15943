// operator new fails, on chosen threads or at random: what throws has changed nothing, what may not throw needs no memory, and no
// error is lost. A binary of its own, because it replaces operator new.
#include <cstdlib>
#include <new>
#include <set>

#include "engine/bulk.h"
#include "engine/comm.h"
#include "engine/device/device_memory.h"
#include "support/child.h"
#include "support/on_device.h"
#include "support/seed.h"

namespace {

thread_local constinit bool t_fails = false;
thread_local constinit int t_until_failure = -1;  // so many more succeed on this thread; -1: all
thread_local constinit bool t_only_one = false;   // fails then
thread_local constinit bool t_exempt = false;     // from failures at random
thread_local constinit uint64_t t_random = 0;
std::atomic<uint32_t> g_one_in{0};
uint64_t g_seed = 0;

void* Allocate(std::size_t bytes, std::size_t align) noexcept {
  if (t_fails) return nullptr;
  if (t_until_failure == 0) {
    if (t_only_one) t_until_failure = -1;
    return nullptr;
  }
  if (t_until_failure > 0) --t_until_failure;
  if (const uint32_t one_in = g_one_in.load(std::memory_order_relaxed); one_in && !t_exempt) {
    if (!t_random) t_random = g_seed ^ static_cast<uint64_t>(gettid()) * 0x9e3779b97f4a7c15;
    t_random = t_random * 6364136223846793005u + 1442695040888963407u;
    if ((t_random >> 33) % one_in == 0) return nullptr;
  }
  return align <= alignof(std::max_align_t) ? std::malloc(bytes)
                                            : std::aligned_alloc(align, (bytes + align - 1) / align * align);
}
void* AllocateOrThrow(std::size_t bytes, std::size_t align) {
  if (void* memory = Allocate(bytes, align)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t bytes) { return AllocateOrThrow(bytes, 1); }
void* operator new[](std::size_t bytes) { return AllocateOrThrow(bytes, 1); }
void* operator new(std::size_t bytes, std::align_val_t align) {
  return AllocateOrThrow(bytes, static_cast<std::size_t>(align));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return Allocate(bytes, 1); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace engine::test {
namespace {

struct NoMemory {
  NoMemory() { t_fails = true; }
  ~NoMemory() { t_fails = false; }
};

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

// Each body has its thread run out of memory, so that what the engine does behind it, to order others behind the op and to find
// its end, gets none.
void RunOnADevice(int workers, int good, bool only_one) {
  SCOPED_TRACE(std::to_string(good) + " allocations succeed, then " + (only_one ? "one fails" : "all fail"));
  const auto alive = std::make_shared<int>();
  std::atomic<int> ran{0};
  {
    Engine eng(OnDevice(workers));
    std::vector<Var> vars(4);
    for (Var& var : vars) var = eng.NewVar("var");
    constexpr int kOps = 60;
    for (int i = 0; i < kOps; ++i) {
      const Var &mine = vars[static_cast<size_t>(i) % 4], &other = vars[static_cast<size_t>(i + 1) % 4];
      const auto body = [&ran, alive, good, only_one] {
        ++ran;
        t_only_one = only_one;
        t_until_failure = good;
      };
      const auto enough = [&ran, alive] {
        ++ran;
        t_until_failure = -1;
      };
      if (i % 5 == 3) {
        eng.Push({.reads = {mine, other}, .run_always = true}, enough);
      } else if (i % 5 == 4) {
        eng.Push({.reads = {mine}, .place = Gpu(0, i % 3), .run_always = true}, body);
      } else {
        eng.Push({.reads = {other}, .updates = {mine}, .place = Gpu(0, i % 3), .run_always = true}, body);
      }
      t_until_failure = -1;  // without workers, ops may run here
    }
    const auto attempt = [&](auto&& wait) {
      try {
        wait();
        return true;
      } catch (const std::bad_alloc&) {
      } catch (const OpError& error) {
        EXPECT_FALSE(Has(error.what(), "was lost")) << error.what();
      }
      t_until_failure = -1;
      return false;
    };
    for (const Var& var : vars) attempt([&] { eng.Wait(var); });
    while (!attempt([&] { eng.WaitAll(); })) {
    }
    t_until_failure = -1;
    EXPECT_EQ(eng.stats().completed, eng.stats().pushed);
    if (good == 1000) {
      EXPECT_EQ(ran, kOps);
    }
  }
  EXPECT_EQ(alive.use_count(), 1);
}

TEST_P(NoMemoryTest, WhateverIsRefusedBehindABodyOnADeviceItsOpsEnd) {
  for (const bool only_one : {true, false})
    for (int good = 0; good < 12; ++good) RunOnADevice(workers(), good, only_one);
  RunOnADevice(workers(), 1000, true);
}

// Memory of a device goes back while there is none for anything else: in a body, on the host behind work on several lanes, and
// with the closure of an op that has retired. All of it is found again.
TEST_P(NoMemoryTest, MemoryOfADeviceGoesBackWithoutMemory) {
  const auto device = MakeSoftwareDevice({});
  EngineOptions options = Quiet(workers());
  options.devices = {device};
  Engine eng(options);
  constexpr size_t kSizes[] = {100, 1000, 5000};
  const std::vector<Var> vars{eng.NewVar(), eng.NewVar(), eng.NewVar()};
  std::vector<DeviceMemory> kept;
  std::set<void*> first, again;
  // Pinned memory is free again once the engine knows that the work is over; a wait may know it earlier.
  const auto await = [&](const Var& var) {
    eng.Wait(var);
    while (eng.device_stats().retired < eng.device_stats().issued) std::this_thread::yield();
  };
  const auto take = [&](RunContext& ctx, std::set<void*>& where) {
    for (const size_t size : kSizes) {
      kept.push_back(ctx.Allocate(size));
      kept.push_back(ctx.AllocatePinned(size));
    }
    for (const DeviceMemory& memory : kept) where.insert(memory.data());
  };
  eng.Push({.writes = {vars[0]}, .place = Gpu(0)}, [&](RunContext& ctx) {
    take(ctx, first);
    const NoMemory none;
    kept.clear();
  });
  await(vars[0]);
  eng.Push({.writes = {vars[0]}, .place = Gpu(0)}, [&](RunContext& ctx) { take(ctx, again); });
  await(vars[0]);
  EXPECT_EQ(first, again);

  std::vector<uint64_t> holds(vars.size());
  for (size_t i = 0; i < vars.size(); ++i)
    eng.Push({.writes = {vars[i]}, .place = Gpu(0, static_cast<uint8_t>(i))},
             [&, i](RunContext& ctx) { EXPECT_TRUE(device->LaunchHeld(ctx.stream(), "held", &holds[i]).ok()); });
  while (eng.device_stats().issued < 2 + vars.size()) std::this_thread::yield();
  {
    const NoMemory none;
    kept.clear();
  }
  for (const uint64_t hold : holds) device->Release(hold);
  for (const Var& var : vars) await(var);
  again.clear();
  eng.Push({.writes = {vars[0]}, .place = Gpu(0)}, [&](RunContext& ctx) { take(ctx, again); });
  await(vars[0]);
  EXPECT_EQ(first, again);

  struct GivesBack {
    std::shared_ptr<DeviceMemory> memory;
    GivesBack(GivesBack&&) = default;
    explicit GivesBack(DeviceMemory given) : memory(std::make_shared<DeviceMemory>(std::move(given))) {}
    ~GivesBack() {
      const NoMemory none;
      memory.reset();
    }
  };
  for (DeviceMemory& memory : kept)
    eng.Push({.updates = {vars[0]}, .place = Gpu(0)}, [back = GivesBack(std::move(memory))] {});
  kept.clear();
  eng.WaitAll();
  await(vars[0]);
  again.clear();
  eng.Push({.writes = {vars[0]}, .place = Gpu(0)}, [&](RunContext& ctx) { take(ctx, again); });
  await(vars[0]);
  EXPECT_EQ(first, again);
}

// At whichever allocation the device is refused memory while the engine gives a block back for good, that is no end of the process.
TEST_P(NoMemoryTest, MemoryOfADeviceMayOutliveItsEngineAndGoWithoutMemory) {
  for (const bool pinned : {false, true})
    for (const bool check : {false, true})
      for (int good = 0; good < 12; ++good) {
        const auto device = MakeSoftwareDevice({.check_pointers = check});
        DeviceMemory kept;
        {
          EngineOptions options = Quiet(workers());
          options.devices = {device};
          Engine eng(options);
          const Var var = eng.NewVar();
          eng.Push({.writes = {var}, .place = Gpu(0)},
                   [&](RunContext& ctx) { kept = pinned ? ctx.AllocatePinned(100) : ctx.Allocate(100); });
          eng.Wait(var);
        }
        EXPECT_TRUE(kept);
        t_until_failure = good;
        kept.Reset();
        t_until_failure = -1;
      }
}

// Whatever is refused while a communicator goes, its rank leaves: behind its collectives, or with the engine.
TEST_P(NoMemoryTest, ACommunicatorMayGoWithoutMemory) {
  for (int good = 0; good < 8; ++good) {
    EngineOptions options = Quiet(workers());
    options.devices = {MakeSoftwareDevice({}), MakeSoftwareDevice({})};
    Engine eng(options);
    const int devices[] = {0, 1};
    for (int round = 0; round < 2; ++round) {
      std::vector<Communicator> comms = NewCommunicators(eng, devices);
      t_until_failure = good;
      comms[0] = Communicator(std::move(comms[1]));
      comms.clear();
      t_until_failure = -1;
      eng.WaitAll();
    }
    EXPECT_EQ(eng.stats().completed, eng.stats().pushed);
  }
}

// A thread that looks after failures has no memory: the collective that cannot end fails all the same.
TEST_P(NoMemoryTest, AnAbortNeedsNoMemory) {
  for (int good = 0; good < 12; ++good) {
    EngineOptions options = Quiet(workers());
    options.devices = {MakeSoftwareDevice({}), MakeSoftwareDevice({})};
    Engine eng(options);
    const int devices[] = {0, 1};
    std::vector<Communicator> comms = NewCommunicators(eng, devices);
    const Var var = eng.NewVar("var");
    // Its closure goes where ops retire.
    std::shared_ptr<void> refuses(nullptr, [good](void*) { t_until_failure = good; });
    comms[0].Push(eng, {.name = "alone", .updates = {var}},
                  {Collective::AllReduce(nullptr, nullptr, 0, DataType::kInt8)});
    eng.Push({.place = Gpu(0)}, [refuses = std::move(refuses)] {});
    eng.WaitAllFor(20ms);
    t_until_failure = -1;  // a wait that spins may have retired it here
    comms[0].Abort("a reason that is too long for a string that needs no memory of its own");
    EXPECT_THROW(eng.Wait(var), OpError);
  }
}

// The device's own side of it: what it has given out it takes back without memory, and gives it out again.
TEST(NoMemoryDevices, ASoftwareDeviceTakesBackWithoutMemory) {
  for (const bool check : {false, true}) {
    const auto device = MakeSoftwareDevice({.memory_bytes = 4096, .check_pointers = check});
    Stream stream;
    ASSERT_TRUE(device->CreateStream(0, &stream).ok());
    Event event;
    ASSERT_TRUE(device->CreateEvent(&event).ok());
    for (int round = 0; round < 3; ++round) {
      std::array<void*, 4> blocks{};
      for (void*& block : blocks) ASSERT_TRUE(device->Allocate(1024, stream, &block).ok());  // all that it has
      void* pinned = nullptr;
      ASSERT_TRUE(device->AllocatePinned(100, &pinned).ok());
      const NoMemory none;
      for (void* const block : blocks) EXPECT_TRUE(device->Free(block, stream).ok());
      EXPECT_TRUE(device->FreePinned(pinned).ok());
    }
    const NoMemory none;
    EXPECT_TRUE(device->DestroyEvent(event).ok());
    EXPECT_TRUE(device->DestroyStream(stream).ok());
  }
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
