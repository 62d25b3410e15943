// Ops on a device: ordered there, over for the host when they retire, and never a synchronization that nobody asked for.
#include <condition_variable>
#include <numeric>

#include "device_test.h"
#include "engine/device/cuda_stream.h"
#include "support/seed.h"

namespace engine::test {
namespace {

constexpr int kTrials = 1000;

TEST(Lanes, OpsOfOneVarRunInOrder) {
  Rig rig;
  Var a = rig.eng().NewVar("a");
  std::vector<int> seen;
  for (int i = 0; i < 100; ++i) rig.Push({.updates = {a}}, [&, i] { seen.push_back(i); });
  rig.eng().Wait(a);
  ASSERT_EQ(seen.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(seen[i], i);
  EXPECT_EQ(rig.eng().device_stats().lanes, 1u) << "each follows its producer's lane";
  EXPECT_EQ(rig.eng().device_stats().waits, 0u);
}

TEST(Lanes, ADeviceOpIsIssuedBeforeItsProducerEnds) {
  Rig rig;
  Var a = rig.eng().NewVar("a"), b = rig.eng().NewVar("b");
  rig.PushHeldKernel({.writes = {a}});
  rig.Push({.reads = {a}, .writes = {b}});
  rig.Push({.updates = {b}});
  rig.WaitIssued();
  EXPECT_EQ(rig.eng().device_stats().issued, 3u);
  EXPECT_EQ(rig.eng().device_stats().retired, 0u);
  EXPECT_FALSE(rig.eng().WaitFor(b, 0s));
}

TEST(Lanes, AHostOpWaitsForRetirement) {
  Rig rig;
  Var a = rig.eng().NewVar("a"), b = rig.eng().NewVar("b");
  const uint64_t hold = rig.PushHeldKernel({.writes = {a}});
  std::atomic<bool> ran{false};
  rig.eng().Push({.reads = {a}, .writes = {b}}, [&] { ran = true; });
  EXPECT_FALSE(rig.eng().WaitFor(b, 0s));
  EXPECT_FALSE(ran);
  rig.device().Release(hold);
  rig.eng().Wait(b);
  EXPECT_TRUE(ran);
}

TEST(Lanes, AHostWriterWaitsForDeviceReaders) {
  Rig rig;
  Var a = rig.eng().NewVar("a");
  rig.eng().Push({.writes = {a}}, [] {});
  const uint64_t hold = rig.PushHeldKernel({.reads = {a}});
  std::atomic<bool> ran{false};
  rig.eng().Push({.writes = {a}}, [&] { ran = true; });
  EXPECT_FALSE(rig.eng().WaitFor(a, 0s));
  EXPECT_FALSE(ran);
  rig.device().Release(hold);
  rig.eng().Wait(a);
  EXPECT_TRUE(ran);
}

// The readers on one lane may retire just while the host's op looks at them; those on the other lane are still there.
TEST(Lanes, AHostWriterWaitsForTheReadersOfEachLane) {
  Rig rig({}, 2);
  Var a = rig.eng().NewVar("a"), b = rig.eng().NewVar("b");
  for (int i = 0; i < kTrials; ++i) {
    rig.eng().Push({.writes = {a}}, [] {});
    const uint64_t hold = rig.PushHeldKernel({.reads = {a}, .place = Gpu(0, 0)});
    std::atomic<bool> ran{false};
    rig.Push({.reads = {a}, .writes = {b}, .place = Gpu(0, 1)});
    rig.eng().Push({.reads = {b}}, [] {});  // somebody asks when that has ended
    for (std::atomic<int> spin{0}; spin < i % 256 * 4;) spin.fetch_add(1, std::memory_order_relaxed);
    rig.eng().Push({.writes = {a}}, [&] { ran = true; });
    rig.eng().Wait(b);
    EXPECT_FALSE(rig.eng().WaitFor(a, 0s));
    EXPECT_FALSE(ran);
    rig.device().Release(hold);
    rig.eng().Wait(a);
    EXPECT_TRUE(ran);
    if (HasFailure()) break;
  }
}

TEST(Lanes, WaitToWriteWaitsForDeviceReaders) {
  Rig rig;
  Var a = rig.eng().NewVar("a");
  const uint64_t hold = rig.PushHeldKernel({.reads = {a}});
  rig.eng().Wait(a);  // nothing was written
  std::thread later([&] { rig.device().Release(hold); });
  rig.eng().WaitToWrite(a);
  EXPECT_EQ(rig.eng().device_stats().retired, 1u);
  later.join();
}

TEST(Lanes, TheHostNeverSynchronizes) {
  Rig rig;
  Var a = rig.eng().NewVar("a"), b = rig.eng().NewVar("b");
  for (int i = 0; i < 300; ++i) {
    rig.Push({.updates = {a}});
    rig.Push({.reads = {a}, .updates = {b}});
    if (i % 50 == 0) rig.eng().Wait(b);
  }
  rig.eng().WaitAll();
  EXPECT_EQ(rig.device().counts()[DeviceCall::kSynchronize], 0u);
}

TEST(Lanes, WaitAllCoversTheDevice) {
  Rig rig;
  Var a = rig.eng().NewVar("a");
  std::atomic<int> ran{0};
  for (int i = 0; i < 50; ++i) rig.Push({.writes = {a}}, [&] { ++ran; });
  rig.eng().WaitAll();
  EXPECT_EQ(ran, 50);
  EXPECT_EQ(rig.eng().stats().completed, 50u);
}

TEST(Lanes, AClosureLivesUntilItsOpHasRetired) {
  Rig rig;
  Var a = rig.eng().NewVar("a");
  auto buffer = std::make_shared<int>(7);
  const uint64_t hold = rig.PushHeldKernel({.writes = {a}});
  rig.Push({.updates = {a}}, [kept = buffer] { EXPECT_EQ(*kept, 7); });
  rig.WaitIssued();
  EXPECT_GT(buffer.use_count(), 1);
  rig.device().Release(hold);
  rig.eng().WaitAll();
  EXPECT_EQ(buffer.use_count(), 1);
}

TEST(Lanes, IndependentChainsGetLanesOfTheirOwn) {
  Rig rig;
  std::vector<Var> vars;
  for (int i = 0; i < 4; ++i) vars.push_back(rig.eng().NewVar());
  for (Var& v : vars) rig.PushHeldKernel({.writes = {v}});
  for (int round = 0; round < 10; ++round)
    for (Var& v : vars) rig.Push({.updates = {v}});
  rig.WaitIssued();
  EXPECT_EQ(rig.eng().device_stats().lanes, 4u);
  EXPECT_EQ(rig.eng().device_stats().waits, 0u) << "each chain stays on its lane";
}

// Their ops alternate on a lane: none is behind its producer alone, and all are in order there without a wait.
TEST(Lanes, MoreChainsThanLanesNeedNoWaits) {
  Rig rig;
  std::vector<Var> chains;
  std::vector<uint64_t> first;
  for (int i = 0; i < 8; ++i) chains.push_back(rig.eng().NewVar());
  for (const Var& chain : chains) first.push_back(rig.PushHeldKernel({.updates = {chain}}));
  for (int step = 0; step < 20; ++step)
    for (const Var& chain : chains) rig.Push({.updates = {chain}});
  rig.WaitIssued();
  const DeviceStats stats = rig.eng().device_stats();
  EXPECT_EQ(stats.lanes, 4u);
  EXPECT_EQ(stats.waits, 0u);
  for (const uint64_t hold : first) rig.device().Release(hold);
  rig.eng().WaitAll();
}

// Side by side, and not one behind another on their producer's lane.
TEST(Lanes, ReadersOfOneProducerGetLanesOfTheirOwn) {
  Rig rig;
  const Var source = rig.eng().NewVar("source");
  rig.PushHeldKernel({.writes = {source}});
  std::vector<Var> outs;
  for (int i = 0; i < 4; ++i) {
    outs.push_back(rig.eng().NewVar());
    rig.Push({.reads = {source}, .writes = {outs.back()}});
  }
  rig.WaitIssued();
  EXPECT_EQ(rig.eng().device_stats().lanes, 4u);
}

// A stream takes about a thousand launches, and then whoever launches waits, and on CUDA everybody else.
TEST(Lanes, ALaneIsGivenNoMoreThanItsStreamTakes) {
  Rig rig;
  const Var held = rig.eng().NewVar("held"), other = rig.eng().NewVar("other");
  const uint64_t hold = rig.PushHeldKernel({.updates = {held}, .place = Gpu(0, 0)});
  for (int i = 0; i < 1200; ++i) rig.Push({.updates = {held}, .place = Gpu(0, 0)});
  rig.Push({.writes = {other}, .place = Gpu(0, 1)});
  rig.eng().Wait(other);
  EXPECT_LE(rig.eng().device_stats().issued, 600u);
  rig.device().Release(hold);
  rig.eng().Wait(held);
  rig.eng().WaitAll();
  EXPECT_EQ(rig.eng().device_stats().issued, 1202u);
}

TEST(Lanes, AnAskedLaneIsKept) {
  Rig rig;
  Var a = rig.eng().NewVar("a"), b = rig.eng().NewVar("b");
  std::vector<Stream> streams(3);
  rig.eng().Push({.writes = {a}, .place = Gpu(0, 2)}, [&](RunContext& ctx) { streams[0] = ctx.stream(); });
  rig.eng().Push({.reads = {a}, .place = Gpu(0, 5)}, [&](RunContext& ctx) { streams[1] = ctx.stream(); });
  rig.eng().Push({.updates = {a}, .place = Gpu(0, 2)}, [&](RunContext& ctx) { streams[2] = ctx.stream(); });
  rig.eng().WaitAll();
  EXPECT_EQ(streams[0], streams[2]);
  EXPECT_FALSE(streams[0] == streams[1]);
}

TEST(Lanes, CopiesHaveLanesOfTheirOwn) {
  Rig rig;
  Var host = rig.eng().NewVar("host"), in = rig.eng().NewVar("in"), out = rig.eng().NewVar("out");
  std::vector<int> from(64), to(64);
  std::iota(from.begin(), from.end(), 0);
  void* memory = nullptr;
  const size_t bytes = from.size() * sizeof(int);
  const auto must = [](const DeviceStatus& s) {
    if (!s.ok()) throw DeviceError(s);
  };
  rig.eng().Push({.name = "in", .reads = {host}, .writes = {in}, .place = CopyIn(0)}, [&](RunContext& ctx) {
    must(ctx.device().Allocate(bytes, ctx.stream(), &memory));
    must(ctx.device().CopyIn(memory, from.data(), bytes, ctx.stream()));
  });
  rig.Push({.name = "double", .updates = {in}}, [&] {
    for (size_t i = 0; i < from.size(); ++i) static_cast<int*>(memory)[i] *= 2;
  });
  rig.eng().Push({.name = "out", .reads = {in}, .writes = {out}, .place = CopyOut(0)},
                 [&](RunContext& ctx) { must(ctx.device().CopyOut(to.data(), memory, bytes, ctx.stream())); });
  rig.eng().Wait(out);
  EXPECT_EQ(to[63], 126);
  EXPECT_EQ(rig.eng().device_stats().lanes, 3u);
  EXPECT_LE(rig.eng().device_stats().waits, 2u) << "none for what has ended already";
}

TEST(Lanes, AnAsynchronousOpIsOverWhenItsCompletionIsCalled) {
  Rig rig;
  Var a = rig.eng().NewVar("a"), b = rig.eng().NewVar("b");
  Completion done;
  Gate called;
  rig.eng().PushAsync({.writes = {a}, .place = Gpu(0)}, [&](RunContext& ctx, Completion c) {
    rig.Launch(ctx, "kernel");
    done = std::move(c);
    called.Open();
  });
  rig.Push({.reads = {a}, .writes = {b}});
  called.Wait();
  EXPECT_FALSE(rig.eng().WaitFor(b, 0s));
  done();
  rig.eng().Wait(b);
}

TEST(Lanes, WorkOnTwoDevicesIsOrderedByTheHost) {
  Rig rig({}, 1, 2, 2);
  Var a = rig.eng().NewVar("a"), b = rig.eng().NewVar("b");
  std::vector<int> seen;
  for (int i = 0; i < 20; ++i) {
    rig.Push({.writes = {a}, .place = Gpu(0)}, [&, i] { seen.push_back(2 * i); });
    rig.Push({.reads = {a}, .writes = {b}, .place = Gpu(1)}, [&, i] { seen.push_back(2 * i + 1); });
  }
  rig.eng().WaitAll();
  for (int i = 0; i < 40; ++i) EXPECT_EQ(seen[i], i);
}

// Two ranks whose collectives meet: each blocks its lane until the other rank has come to the same one. Any other order
// than that of the pushes, on either rank, would never end.
TEST(Lanes, CollectivesOfACommunicatorKeepThePushOrderOnEveryRank) {
  constexpr int kCollectives = 40;
  Rig rig({}, 2, 2, 2);
  Random chance(Seed());
  SCOPED_TRACE(SeedLine());
  std::mutex mu;
  std::condition_variable met;
  std::array<int, 2> came{-1, -1};
  std::array<std::vector<int>, 2> order;
  std::array<Var, 2> communicator{rig.eng().NewVar("rank 0"), rig.eng().NewVar("rank 1")};
  std::array<std::array<Var, 3>, 2> gradients;
  for (auto& of_rank : gradients)
    for (Var& v : of_rank) v = rig.eng().NewVar();
  HeldOps bulk(rig.eng());
  for (int i = 0; i < kCollectives; ++i)
    for (uint16_t rank = 0; rank < 2; ++rank) {
      const Var& gradient = gradients[rank][chance.Below(3)];
      if (chance.OneIn(2))
        rig.Push({.updates = gradient, .place = Gpu(rank), .priority = static_cast<int>(chance.Below(5)) - 2});
      const std::array<VarRef, 2> touched{communicator[rank], gradient};
      const OpDesc desc{.name = "all_reduce",
                        .updates = std::span<const VarRef>(touched),
                        .place = Gpu(rank, 7),
                        .priority = static_cast<int>(chance.Below(5)) - 2};
      const auto body = [&, i, rank](RunContext& ctx) {
        rig.Launch(ctx, "all_reduce", [&, i, rank] {
          std::unique_lock lock(mu);
          order[rank].push_back(i);
          came[rank] = i;
          met.notify_all();
          met.wait(lock, [&] { return came[1 - rank] >= i; });
        });
      };
      if (chance.OneIn(3)) {
        rig.eng().Push(desc, body);
      } else {
        bulk.Push(desc, body);
        if (chance.OneIn(4)) bulk.Release();
      }
    }
  bulk.Release();
  rig.eng().WaitAll();
  std::vector<int> pushed(kCollectives);
  std::iota(pushed.begin(), pushed.end(), 0);
  EXPECT_EQ(order[0], pushed);
  EXPECT_EQ(order[1], pushed);
  EXPECT_EQ(rig.device(0).counts()[DeviceCall::kSynchronize] + rig.device(1).counts()[DeviceCall::kSynchronize], 0u);
}

TEST(Lanes, APushThatWaitsForRoomGoesOnWhenTheDeviceEnds) {
  SoftwareDeviceOptions device;
  auto software = MakeSoftwareDevice(device);
  EngineOptions options = Quiet(1);
  options.devices = {software};
  options.max_pending = 64;
  Engine eng(options);
  Var a = eng.NewVar("a");
  for (int i = 0; i < 2000; ++i)
    eng.Push({.updates = {a}, .place = Gpu(0)}, [&](RunContext& ctx) {
      const DeviceStatus s = software->Launch(ctx.stream(), "k", std::chrono::nanoseconds(1), [] {});
      if (!s.ok()) throw DeviceError(s);
    });
  eng.Wait(a);
  EXPECT_EQ(a.version(), 2000u);
  EXPECT_GT(eng.stats().backpressure_waits, 0u);
}

TEST(Lanes, TheContextKnowsWhereItRuns) {
  Rig rig;
  Var a = rig.eng().NewVar("a");
  rig.eng().Push({.writes = {a}}, [](RunContext& ctx) {
    EXPECT_FALSE(ctx.defer_sync());
    EXPECT_THROW((void)ctx.stream(), UsageError);
    EXPECT_THROW((void)ctx.device(), UsageError);
  });
  rig.eng().Push({.updates = {a}, .place = Gpu(0)}, [](RunContext& ctx) {
    EXPECT_TRUE(ctx.defer_sync());
    EXPECT_TRUE(static_cast<bool>(ctx.stream()));
    EXPECT_THROW((void)CudaStream(ctx), UsageError) << "not a CUDA device";
  });
  rig.eng().Wait(a);
}

TEST(Lanes, AnUnknownDeviceIsRefusedAtThePush) {
  Rig rig;
  Var a = rig.eng().NewVar("a");
  EXPECT_THROW(rig.Push({.writes = {a}, .place = Gpu(3)}), UsageError);
  EXPECT_THROW(rig.Push({.writes = {a}, .place = Gpu(99)}), UsageError);
  EXPECT_THROW(rig.Push({.writes = {a}, .place = Gpu(0, 77)}), UsageError);
  EXPECT_EQ(rig.eng().stats().pushed, 0u);
}

}  // namespace
}  // namespace engine::test
