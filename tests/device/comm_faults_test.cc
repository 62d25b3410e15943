// What can go wrong with a communicator: nobody hangs, the ops concerned fail with the cause and the communicator's name,
// everybody else goes on.
#include <sys/wait.h>

#include "comm_rig.h"
#include "engine/plan.h"

namespace engine::test {
namespace {

using Floats = std::vector<float>;

TEST(CommunicatorFaults, RanksThatDoNotFitTogetherAreToldSo) {
  Ranks ranks(2, {.name = "pair"});
  Engine& eng = ranks.eng();
  std::array<Ranks::Buffer, 2> g{ranks.New(0, 4), ranks.New(1, 8)};
  ranks.AllReduce(0, g[0]);
  ranks.AllReduce(1, g[1]);
  for (const Ranks::Buffer& b : g) {
    const std::string error = ranks.ErrorOf(b.var);
    ExpectHas(error, "communicator 'pair', rank " + std::to_string(b.rank) + " of 2");
    ExpectHas(error, "collective 1: rank");
    ExpectHas(error, "all_reduce of 4 float32 (sum)");
    ExpectHas(error, "all_reduce of 8 float32 (sum)");
    ExpectHas(error, "'all_reduce'");
  }
  ranks.SeeErrors();
  // A later collective fails with the cause; the device goes on.
  const Ranks::Buffer later = ranks.New(0, 1);
  ranks.AllReduce(0, later);
  ExpectHas(ranks.ErrorOf(later.var), "all_reduce of 8 float32 (sum)");
  ranks.Fill(eng, later, {5});
  EXPECT_EQ(ranks.Read(later), Floats{5});
}

TEST(CommunicatorFaults, GroupsMustBeAlikeOnAllRanks) {
  Ranks ranks(2);
  std::array<Ranks::Buffer, 2> g{ranks.New(0, 1), ranks.New(1, 1)};
  const auto call = [&](size_t r) { return Collective::AllReduce(g[r].data, g[r].data, 1); };
  ranks.comms[0].Push(ranks.eng(), {.name = "two", .updates = g[0].var}, {call(0), call(0)});
  ranks.comms[1].Push(ranks.eng(), {.name = "one", .updates = g[1].var}, {call(1)});
  ExpectHas(ranks.ErrorOf(g[0].var), "all_reduce of 1 float32 (sum) and all_reduce of 1 float32 (sum)");
  EXPECT_NE(ranks.ErrorOf(g[1].var), "");
  ranks.SeeErrors();
}

TEST(CommunicatorFaults, ACallThatIsRefusedFailsItsOpAndTellsTheOthers) {
  Ranks ranks(2);
  std::array<Ranks::Buffer, 2> g{ranks.New(0, 1), ranks.New(1, 1)};
  PlantLoopbackFault(ranks.id, 0, 2, LoopbackFault::kCallFails);
  for (int i = 0; i < 2; ++i)
    for (int r = 0; r < 2; ++r) ranks.AllReduce(r, g[static_cast<size_t>(r)]);
  ExpectHas(ranks.ErrorOf(g[0].var), "push 2 of rank 0 is refused");
  ExpectHas(ranks.ErrorOf(g[1].var), "rank 0 was aborted");
  ranks.SeeErrors();
}

// What had been issued behind a collective that fails is issued already, on a device that lives: those ops fail that need
// the result, and no others.
TEST(CommunicatorFaults, WhatNeedsAFailedCollectiveFailsWithItAndNothingElse) {
  Ranks ranks(2);
  Engine& eng = ranks.eng();
  std::array<Ranks::Buffer, 2> g{ranks.New(0, 1), ranks.New(1, 1)};
  const Ranks::Buffer fine = ranks.New(0, 1), read = ranks.New(0, 1), overwritten = ranks.New(0, 1);
  PlantLoopbackFault(ranks.id, 0, 1, LoopbackFault::kNeverComes);
  const Var host = eng.NewVar();
  ranks.AllReduce(0, g[0]);
  ranks.AllReduce(1, g[1]);
  ranks.Kernel(eng, 0, {.name = "reader", .reads = g[0].var, .writes = read.var}, [] {});
  ranks.Kernel(eng, 0, {.name = "of the reader", .reads = read.var, .updates = overwritten.var}, [] {});
  ranks.Kernel(eng, 0, {.name = "again", .writes = overwritten.var}, [d = overwritten.data] { *d = 3; });
  ranks.Kernel(eng, 0, {.name = "apart", .writes = fine.var}, [d = fine.data] { *d = 4; });
  eng.Push({.name = "on the host", .reads = read.var, .writes = host}, [] { ADD_FAILURE() << "must be skipped"; });
  // Two joins, two collectives, four kernels; the host op waits.
  while (eng.device_stats().issued < 8) std::this_thread::yield();
  ranks.comms[0].Abort("the test says so");
  for (const Var& v : {g[0].var, read.var, host}) ExpectHas(ranks.ErrorOf(v), "rank 0 of 2: aborted: the test says so");
  ExpectHas(ranks.ErrorOf(g[1].var), "rank 0 was aborted");
  EXPECT_EQ(ranks.Read(overwritten), Floats{3});
  EXPECT_EQ(ranks.Read(fine), Floats{4});
  ranks.SeeErrors();
  // Cleared or written anew, everything is as before.
  eng.ClearError(g[0].var);
  ranks.Kernel(eng, 0, {.reads = g[0].var, .writes = read.var}, [d = read.data] { *d = 5; });
  EXPECT_EQ(ranks.Read(read), Floats{5});
  // And a new communicator on the same devices works.
  const CommunicatorId id = NewCommunicatorId(ranks.device());
  for (int r = 0; r < 2; ++r) {
    const auto at = static_cast<size_t>(r);
    ranks.comms[at] = Communicator(eng, {.name = "next", .device = r, .rank = r, .size = 2, .id = id});
    ranks.Fill(eng, g[at], {2});
    ranks.AllReduce(r, g[at]);
  }
  EXPECT_EQ(ranks.Read(g[1]), Floats{4});
}

// The same behind a run: its Vars are released as its nodes are issued, and the run is over only later.
TEST(CommunicatorFaults, WhatNeedsAFailedNodeOfARunFailsWithIt) {
  Ranks ranks(2);
  Engine& eng = ranks.eng();
  std::array<Ranks::Buffer, 2> g{ranks.New(0, 1), ranks.New(1, 1)};
  const Ranks::Buffer made = ranks.New(0, 1), read = ranks.New(0, 1), fine = ranks.New(0, 1);
  PlantLoopbackFault(ranks.id, 0, 1, LoopbackFault::kNeverComes);
  ranks.AllReduce(0, g[0]);
  ranks.AllReduce(1, g[1]);
  Graph graph;
  {
    Capture capture(graph);
    ranks.Kernel(capture, 0, {.name = "node", .reads = g[0].var, .writes = made.var}, [] {});
    ranks.Kernel(capture, 0, {.name = "apart", .writes = fine.var}, [d = fine.data] { *d = 4; });
  }
  const Plan plan = graph.Compile(eng);
  engine::Run run = plan.Start({}, {});
  ranks.Kernel(eng, 0, {.name = "behind the run", .reads = made.var, .writes = read.var}, [] {});
  // Two joins, two collectives, two nodes, one kernel.
  while (eng.device_stats().issued < 7) std::this_thread::yield();
  ranks.comms[0].Abort("the test says so");
  for (const Var& v : {made.var, read.var}) ExpectHas(ranks.ErrorOf(v), "rank 0 of 2: aborted: the test says so");
  EXPECT_THROW((void)run.Wait(), OpError);
  ranks.SeeErrors();
  ranks.Fill(eng, made, {2});
  ranks.Kernel(eng, 0, {.reads = made.var, .writes = read.var}, [d = read.data] { *d = 5; });
  EXPECT_EQ(ranks.Read(read), Floats{5});
}

TEST(CommunicatorFaults, AnAsynchronousErrorAbortsEveryRank) {
  Ranks ranks(3);
  std::vector<Ranks::Buffer> g;
  for (int r = 0; r < 3; ++r) g.push_back(ranks.New(r, 1));
  PlantLoopbackFault(ranks.id, 1, 4, LoopbackFault::kAsyncError);
  for (int i = 0; i < 10; ++i)
    for (int r = 0; r < 3; ++r) ranks.AllReduce(r, g[static_cast<size_t>(r)]);
  for (const Ranks::Buffer& b : g) ExpectHas(ranks.ErrorOf(b.var), "a planted asynchronous error, at push 4 of rank 1");
  ranks.SeeErrors();
}

TEST(CommunicatorFaults, ARankThatNeverComesIsFoundByTheTimeout) {
  Ranks ranks(2, {.name = "timed", .timeout = std::chrono::milliseconds(5)});
  std::array<Ranks::Buffer, 2> g{ranks.New(0, 1), ranks.New(1, 1)};
  ranks.AllReduce(0, g[0]);  // rank 1 never does
  const std::string error = ranks.ErrorOf(g[0].var);
  ExpectHas(error, "'all_reduce'");
  ExpectHas(error, "has not ended within the timeout of 5 ms");
  ExpectHas(error, "communicator 'timed', rank 0 of 2");
  ranks.SeeErrors();
}

// Nobody awaits it, so the host need not know yet that it has ended.
TEST(CommunicatorFaults, WhatHadEndedBeforeTheFailureIsGood) {
  Ranks ranks(2);
  std::array<Ranks::Buffer, 2> g{ranks.New(0, 1), ranks.New(1, 1)}, later{ranks.New(0, 1), ranks.New(1, 1)};
  PlantLoopbackFault(ranks.id, 1, 2, LoopbackFault::kNeverComes);
  for (int r = 0; r < 2; ++r) {
    const auto at = static_cast<size_t>(r);
    ranks.Fill(ranks.eng(), g[at], {1});
    ranks.AllReduce(r, g[at]);
    ranks.AllReduce(r, later[at]);
  }
  EXPECT_EQ(ranks.Read(g[0]), Floats{2}) << "so the first has ended, which nobody has awaited";
  ranks.comms[0].Abort("enough");
  ExpectHas(ranks.ErrorOf(later[0].var), "enough");
  EXPECT_NE(ranks.ErrorOf(later[1].var), "");
  EXPECT_EQ(ranks.ErrorOf(g[0].var), "");
  EXPECT_EQ(ranks.Read(g[0]), Floats{2});
  ranks.SeeErrors();
}

TEST(CommunicatorFaults, ADeadRankDoesNotKeepTheEngineFromEnding) {
  std::vector<std::string> unseen;
  Alone rank([&](EngineOptions& options) {
    options.drain_timeout = std::chrono::milliseconds(20);
    options.on_unobserved = [&](const OpError& error) { unseen.emplace_back(error.what()); };
  });
  rank.eng.reset();
  ASSERT_EQ(unseen.size(), 1u);
  ExpectHas(unseen[0], "'alone'");
  ExpectHas(unseen[0], "rank 0 of 2: the engine was shut down");
  EXPECT_EQ(unseen[0].find("lost"), std::string::npos) << "the device is not: " << unseen[0];
  Engine another(rank.options);
  EXPECT_THROW(rank.comm->Push(another, {}, {Collective::AllReduce(&unseen, &unseen, 1)}), UsageError);
  rank.comm.reset();  // after its engine
}

// The others would wait for a rank that skips a collective for ever.
TEST(CommunicatorFaults, ASkippedCollectiveFailsTheCommunicator) {
  Ranks ranks(2);
  Engine& eng = ranks.eng();
  std::array<Ranks::Buffer, 2> g{ranks.New(0, 1), ranks.New(1, 1)};
  eng.Push({.name = "loss", .updates = g[0].var}, [] { throw std::runtime_error("not a number"); });
  ranks.AllReduce(0, g[0]);
  ranks.AllReduce(1, g[1]);
  ExpectHas(ranks.ErrorOf(g[0].var), "not a number");
  const std::string error = ranks.ErrorOf(g[1].var);
  ExpectHas(error, "rank 0 was aborted");
  ExpectHas(error, "did not run");
  ExpectHas(error, "not a number");
  ranks.SeeErrors();
}

// Running out of memory waits for the device, but not for what waits for a peer: that could wait for this rank.
TEST(CommunicatorFaults, ARankThatRunsOutOfMemoryDoesNotWaitForItsPeers) {
  Alone rank({}, "pair", {.memory_bytes = 1 << 20});
  rank.WaitIssued();
  const Var a = rank.eng->NewVar();
  rank.eng->Push({.name = "greedy", .writes = a, .place = Gpu(0)},
                 [](RunContext& ctx) { (void)ctx.Allocate(2 << 20); });
  ExpectHas(FailureOf(*rank.eng, a).text, "OutOfMemory");
  rank.End();
}

// Nor does pinned memory, which is freed only when everything on the device has ended: what the pool has stays there.
TEST(CommunicatorFaults, ARankThatRunsOutOfPinnedMemoryDoesNotWaitForItsPeers) {
  Alone rank;
  rank.WaitIssued();
  const Var a = rank.eng->NewVar();
  const auto pinned = [&](size_t bytes) {
    rank.eng->Push({.writes = a, .place = Gpu(0)}, [=](RunContext& ctx) { (void)ctx.AllocatePinned(bytes); });
    return FailureOf(*rank.eng, a).text;
  };
  EXPECT_EQ(pinned(1000), "");
  rank.device->FailCall(DeviceCall::kAllocatePinned, 1, DeviceCode::kOutOfMemory, false);
  EXPECT_EQ(pinned(10000), "") << "the driver was asked again";
  EXPECT_EQ(rank.device->counts()[DeviceCall::kFreePinned], 0u);
  rank.End();
}

TEST(CommunicatorFaults, TheWatchdogNamesACollectiveWhosePeerNeverComes) {
  Gate reported;
  std::string report;
  Alone rank([&](EngineOptions& options) {
    options.stall_timeout = std::chrono::milliseconds(100);
    options.on_stall = [&](std::string_view text) {
      report = text;
      reported.Open();
    };
  });
  reported.Wait();
  ExpectHas(report, "op 'alone'");
  ExpectHas(report, "comm_rig.h");
  ExpectHas(report, "is issued to a device, and has not ended there");
  rank.End();
}

TEST(CommunicatorFaults, AForksChildHasNone) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's threads do not survive a fork";
  Ranks ranks(1, {.name = "solo"});
  const Ranks::Buffer g = ranks.New(0, 1);
  ranks.Fill(ranks.eng(), g, {3});
  ranks.AllReduce(0, g);
  EXPECT_EQ(ranks.Read(g), Floats{3});
  const pid_t child = fork();
  if (child == 0) {
    const auto refused = [](auto&& f, const char* why) {
      try {
        f();
      } catch (const UsageError& error) {
        return std::string(error.what()).find(why) != std::string::npos;
      }
      return false;
    };
    const bool push = refused([&] { ranks.AllReduce(0, g); }, "communicator 'solo': op 'all_reduce' in a fork's child");
    const CommunicatorOptions another{.name = "another", .id = NewCommunicatorId(ranks.device())};
    const bool made = refused([&] { Communicator(ranks.eng(), another); }, "lost in a fork's child");
    ranks.comms.clear();  // its end is the parent's
    _exit((push ? 0 : 1) | (made ? 0 : 2));
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  ranks.AllReduce(0, g);  // the parent's is as good as before
  EXPECT_EQ(ranks.Read(g), Floats{3});
}

TEST(CommunicatorFaults, RanksMustAgreeOnTheirNumberAndBeThereOnce) {
  Rig rig({}, 2, 2, 2);
  Engine& eng = rig.eng();
  const auto joined = [&](CommunicatorOptions one, CommunicatorOptions two) {
    one.id = two.id = NewCommunicatorId(rig.device());
    two.device = 1;
    Communicator a(eng, one), b(eng, two);
    std::string text;
    for (const Var* v : {&a.var(), &b.var()}) {
      try {
        eng.Wait(*v);
      } catch (const OpError& error) {
        text += error.what();
      }
    }
    return text;
  };
  ExpectHas(joined({.size = 2}, {.rank = 1, .size = 3}), " ranks, an earlier one for ");
  ExpectHas(joined({.size = 2}, {.size = 2}), "rank 0 came twice");
  try {
    eng.WaitAll();
  } catch (const OpError&) {
  }
}

// The work behind a collective that failed is still on its way when somebody learns of the failure. What overwrites its Vars comes
// behind it, whoever has learned before.
TEST(CommunicatorFaults, WhatOverwritesAFailedVarComesBehindTheWorkThatIsLeft) {
  Ranks ranks(2);
  Engine& eng = ranks.eng();
  const Ranks::Buffer a = ranks.New(0, 1);
  const Var learned = eng.NewVar(), done = eng.NewVar();
  ranks.comms[0].Push(eng, {.name = "alone", .updates = {a.var}}, {Collective::AllReduce(a.data, a.data, 1)});
  auto& device = static_cast<SoftwareDevice&>(ranks.device(0));
  Gate issued;
  uint64_t hold = 0;
  eng.Push({.name = "left", .updates = {a.var}, .place = Gpu(0, 0)}, [&](RunContext& ctx) {
    Ranks::Check(device.LaunchHeld(ctx.stream(), "left", &hold));
    issued.Open();
  });
  issued.Wait();
  ranks.comms[0].Abort("a reason");
  while (eng.stats().unseen_errors == 0) std::this_thread::yield();  // the issued ops have failed
  eng.Push({.reads = {a.var}, .writes = {learned}, .place = Gpu(0, 1)}, [] { ADD_FAILURE() << "must be skipped"; });
  EXPECT_THROW(eng.Wait(learned), OpError);
  eng.Push({.writes = {a.var, done}, .place = Gpu(0, 1)}, [] {});
  EXPECT_FALSE(eng.WaitFor(done, 100ms)) << "it did not wait for the kernel that is still to run";
  device.Release(hold);
  eng.Wait(done);
  eng.Wait(a.var);
}

}  // namespace
}  // namespace engine::test
