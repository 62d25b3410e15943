// Ops on devices, memory of devices and communicators while memory is refused: nothing of what is owed behind a body is lost.
#include <set>

#include "engine/comm.h"
#include "engine/device/device_memory.h"
#include "support/no_memory.h"
#include "support/on_device.h"

namespace engine::test {
namespace {

class NoMemoryDeviceTest : public testing::TestWithParam<int> {
 protected:
  int workers() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Workers, NoMemoryDeviceTest, testing::Values(0, 1, 4));

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

TEST_P(NoMemoryDeviceTest, WhateverIsRefusedBehindABodyOnADeviceItsOpsEnd) {
  for (const bool only_one : {true, false})
    for (int good = 0; good < 12; ++good) RunOnADevice(workers(), good, only_one);
  RunOnADevice(workers(), 1000, true);
}

// Memory of a device goes back while there is none for anything else: in a body, on the host behind work on several lanes, and
// with the closure of an op that has retired. All of it is found again.
TEST_P(NoMemoryDeviceTest, MemoryOfADeviceGoesBackWithoutMemory) {
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
TEST_P(NoMemoryDeviceTest, MemoryOfADeviceMayOutliveItsEngineAndGoWithoutMemory) {
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

// At whichever allocation memory is refused while a bulk is looked at, entered and captured as a graph: it runs, by its
// bodies if need be, or its ops fail with what was refused, and it runs again afterwards. The launch itself is the
// device's, and no part of it.
// At most one worker: the thread that is armed is the one that issues the bulk.
TEST(NoMemoryDevices, ABulkThatIsToBeAGraphRunsWithoutMemoryForIt) {
  // Run 0 enters the bulk's key, run 2 captures it.
  for (const auto& [workers, armed] : {std::pair(0, 0), {0, 2}, {1, 0}, {1, 2}}) {
    bool launched = false;
    for (int good = 0; good < 300 && !launched; ++good) {
      SCOPED_TRACE("run " + std::to_string(armed) + ": " + std::to_string(good) + " allocations succeed, one fails");
      const auto device = MakeSoftwareDevice({});
      EngineOptions options = Quiet(workers);
      options.devices = {device};
      Engine eng(options);
      HeldOps held(eng);
      const Var var = eng.NewVar("var");
      uint64_t value = 0;
      const auto step = [&] {
        for (uint64_t i = 1; i <= 3; ++i)
          held.Push({.name = "member", .updates = {var}, .place = Gpu(0), .graph = {.kind = i, .one_call = true}},
                    [&, i](RunContext& ctx) {
                      const auto kernel = [&, i] { value = 10 * value + i; };
                      const DeviceStatus status = device->Launch(ctx.stream(), "kernel", 0us, kernel);
                      if (!status.ok()) throw DeviceError(status);
                    });
        held.Release();
      };
      // Behind it, on the thread that issues, the bulk comes.
      const auto arms = [&] {
        eng.Push({.name = "arms", .writes = {var}, .place = Gpu(0)}, [good] {
          t_only_one = true;
          t_until_failure = good;
        });
      };
      for (int run = 0; run < 6; ++run) {
        value = 0;
        const uint64_t graphs = device->counts()[DeviceCall::kLaunchGraph];
        if (run == armed) arms();
        step();
        t_until_failure = -1;  // without workers, ops may run here
        bool failed = false;
        try {
          eng.Wait(var);
        } catch (const OpError& error) {
          EXPECT_TRUE(Has(error.what(), "bad_alloc")) << error.what();
          failed = true;
        } catch (const std::bad_alloc&) {  // the wait itself, where ops run on this thread
          t_until_failure = -1;
          try {
            eng.Wait(var);
          } catch (const OpError&) {
            failed = true;
          }
        }
        t_until_failure = -1;
        launched |= run == armed && (armed == 0 ? good == 60 : device->counts()[DeviceCall::kLaunchGraph] != graphs);
        if (launched && armed == 2) {
          eng.WaitAll();  // until all has retired, which is counted later than `var` is written
          break;
        }
        if (failed) {
          EXPECT_EQ(run, armed);
          eng.ClearError(var);
        } else {
          EXPECT_EQ(value, 123u) << "run " << run;
        }
        eng.Push({.place = Gpu(0)}, [] { t_until_failure = -1; });  // on the thread that issues
        try {
          eng.WaitAll();
        } catch (const std::exception&) {
          EXPECT_EQ(run, armed);
        }
      }
      EXPECT_EQ(eng.stats().completed, eng.stats().pushed);
    }
    EXPECT_TRUE(launched) << "the loop is long enough";
  }
}

// Whatever is refused while a communicator goes, its rank leaves: behind its collectives, or with the engine.
TEST_P(NoMemoryDeviceTest, ACommunicatorMayGoWithoutMemory) {
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
TEST_P(NoMemoryDeviceTest, AnAbortNeedsNoMemory) {
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

}  // namespace
}  // namespace engine::test
