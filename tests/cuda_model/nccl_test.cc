// Communicators on CUDA and NCCL, over their models: what every backend passes (tests/device/comm_test.cc), and what NCCL can
// fail by.
#include <cuda_runtime_api.h>

#include "control.h"
#include "device/comm_rig.h"
#include "engine/device/cuda_stream.h"
#include "engine/device/device_memory.h"
#include "nccl_control.h"

namespace engine::test {
namespace {

using Floats = std::vector<float>;

const RanksOn kNccl{"Nccl",
                    [](int n) {
                      std::vector<std::shared_ptr<Device>> devices;
                      for (int i = 0; i < n; ++i) devices.push_back(MakeCudaDevice(i));
                      return devices;
                    },
                    [](RunContext& ctx, std::function<void()> body) {
                      auto kernel = std::make_unique<std::function<void()>>(std::move(body));
                      const auto run = [](void* given) {
                        const std::unique_ptr<std::function<void()>> mine(static_cast<std::function<void()>*>(given));
                        (*mine)();
                      };
                      if (const cudaError_t error = cudaLaunchHostFunc(CudaStream(ctx), run, kernel.get());
                          error != cudaSuccess)
                        throw std::runtime_error(cudaGetErrorName(error));
                      (void)kernel.release();
                    }};

class Nccl : public testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(cudaModelViolations(), 0) << cudaModelLastViolation();
    // An abort has a thread of its own, for which an engine that ends waits no longer than for its ops.
    for (const auto limit = std::chrono::steady_clock::now() + 10s;
         ncclModelLiveCommunicators() != 0 && std::chrono::steady_clock::now() < limit;)
      std::this_thread::yield();
    EXPECT_EQ(ncclModelLiveCommunicators(), 0);
    EXPECT_EQ(cudaModelLiveObjects(), 0);
  }
  const long aborts_ = ncclModelCalls("ncclCommAbort");
};

// Every call of NCCL's, failing at each of its times: the program ends, and each buffer has its value or says why not.
class EachNcclCallFails : public Nccl, public testing::WithParamInterface<const char*> {};

TEST_P(EachNcclCallFails, AndNothingHangsOrIsLost) {
  for (long nth = 1; nth <= 8; ++nth) {
    SCOPED_TRACE("failing call " + std::to_string(nth));
    const long calls = ncclModelCalls(GetParam());
    long made = 0;
    ncclModelFail(GetParam(), nth, ncclSystemError);
    {
      Ranks ranks(1, {.name = "solo"}, kNccl);
      const Ranks::Buffer a = ranks.New(0, 1), b = ranks.New(0, 1);
      ranks.Fill(ranks.eng(), a, {1});
      ranks.Fill(ranks.eng(), b, {2});
      ranks.AllReduce(0, a);
      ranks.comms[0].Push(ranks.eng(), {.name = "group", .updates = {a.var, b.var}},
                          {Collective::AllReduce(a.data, a.data, 1), Collective::AllReduce(b.data, b.data, 1)});
      std::string said;
      for (const Var& v : {a.var, b.var}) said += ranks.ErrorOf(v);
      if (said.empty()) {
        EXPECT_EQ(ranks.Read(a), Floats{1});
        EXPECT_EQ(ranks.Read(b), Floats{2});
      } else {
        ExpectHas(said, "communicator 'solo', rank 0 of 1: ");
        ExpectHas(said, "unhandled system error (" + std::string(GetParam()) + ": made to fail)");
      }
      ranks.comms.clear();
      ranks.SeeErrors();
      made = ncclModelCalls(GetParam()) - calls;
      ncclModelFail("", 0, ncclSuccess);
      // Its thread and its lane are the next one's.
      ranks.comms.emplace_back(ranks.eng(), CommunicatorOptions{.id = NewCommunicatorId(ranks.device())});
      ranks.Fill(ranks.eng(), a, {3});
      ranks.AllReduce(0, a);
      EXPECT_EQ(ranks.Read(a), Floats{3});
    }
    EXPECT_EQ(ncclModelLiveCommunicators(), 0);
    if (made >= nth) continue;
    EXPECT_GT(nth, 1) << "it was never called";
    break;
  }
}

INSTANTIATE_TEST_SUITE_P(Calls, EachNcclCallFails,
                         testing::Values("ncclCommInitRankConfig", "ncclCommGetAsyncError", "ncclAllReduce",
                                         "ncclGroupStart", "ncclGroupEnd", "ncclCommFinalize"),
                         [](const auto& p) { return std::string(p.param).substr(4); });

TEST_F(Nccl, AnIdThatCannotBeMadeIsAnError) {
  ncclModelFail("ncclGetUniqueId", 1, ncclSystemError);
  try {
    (void)NewCommunicatorId("cuda");
    FAIL() << "there is none";
  } catch (const CommunicatorError& error) {
    EXPECT_STREQ(error.what(), "ncclGetUniqueId: unhandled system error");
  }
}

TEST_F(Nccl, AnAsynchronousErrorFailsEveryRankAndTheDevicesGoOn) {
  Ranks ranks(3, {.name = "data"}, kNccl);
  Engine& eng = ranks.eng();
  std::vector<Ranks::Buffer> g;
  for (int r = 0; r < 3; ++r) g.push_back(ranks.New(r, 1));
  ncclModelFailAsync(1, 4, ncclRemoteError);
  for (int i = 0; i < 10; ++i)
    for (int r = 0; r < 3; ++r) ranks.AllReduce(r, g[static_cast<size_t>(r)]);
  for (const Ranks::Buffer& b : g) {
    const std::string error = ranks.ErrorOf(b.var);
    ExpectHas(error, "communicator 'data', rank " + std::to_string(b.rank) + " of 3: ");
    ExpectHas(error, "remote process exited or there was a network error");
  }
  ranks.SeeErrors();
  // A new communicator on the same devices.
  const CommunicatorId id = NewCommunicatorId(ranks.device());
  for (int r = 0; r < 3; ++r) {
    const auto at = static_cast<size_t>(r);
    ranks.comms[at] = Communicator(eng, {.name = "next", .device = r, .rank = r, .size = 3, .id = id});
    ranks.Fill(eng, g[at], {2});
    ranks.AllReduce(r, g[at]);
  }
  for (const Ranks::Buffer& b : g) EXPECT_EQ(ranks.Read(b), Floats{6});
}

TEST_F(Nccl, ARankThatNeverComesIsFoundByTheTimeout) {
  Ranks ranks(2, {.name = "timed", .timeout = std::chrono::milliseconds(20)}, kNccl);
  const Ranks::Buffer g = ranks.New(0, 1), apart = ranks.New(0, 1);
  ranks.eng().Wait(ranks.comms[1].var());
  ranks.AllReduce(0, g);  // rank 1 never does
  ExpectHas(ranks.ErrorOf(g.var), "'all_reduce'");
  ranks.Fill(ranks.eng(), apart, {3});
  EXPECT_EQ(ranks.Read(apart), Floats{3});
  ranks.SeeErrors();
}

TEST_F(Nccl, WhatNeedsACollectiveThatIsAbortedFailsWithItAndNothingElse) {
  Ranks ranks(2, {}, kNccl);
  Engine& eng = ranks.eng();
  const Ranks::Buffer g = ranks.New(0, 1), read = ranks.New(0, 1), apart = ranks.New(0, 1);
  ranks.AllReduce(0, g);
  ranks.Kernel(eng, 0, {.name = "reader", .reads = g.var, .writes = read.var}, [] {});
  ranks.Kernel(eng, 0, {.name = "apart", .writes = apart.var}, [d = apart.data] { *d = 4; });
  while (eng.device_stats().issued < 5) std::this_thread::yield();  // two joins, a collective, two kernels
  EXPECT_FALSE(eng.WaitFor(g.var, 0s));
  ranks.comms[0].Abort("the test says so");
  for (const Var& v : {g.var, read.var}) ExpectHas(ranks.ErrorOf(v), "rank 0 of 2: aborted: the test says so");
  EXPECT_EQ(ranks.Read(apart), Floats{4});
  ranks.SeeErrors();
}

// Its join is in progress until the others come.
TEST_F(Nccl, ARankThatIsAloneCanBeAbortedTimedOutAndShutDown) {
  for (const char* end : {"aborted: enough", "has not ended within the timeout", "the engine was shut down"}) {
    SCOPED_TRACE(end);
    std::string seen;
    {
      EngineOptions options = Quiet(1);
      options.devices = {MakeCudaDevice(0)};
      options.drain_timeout = std::chrono::milliseconds(20);
      options.on_unobserved = [&](const OpError& error) { seen += error.what(); };
      Engine eng(options);
      const std::chrono::milliseconds timeout(end[0] == 'h' ? 5 : 0);
      Communicator alone(eng, {.size = 2, .id = NewCommunicatorId("cuda"), .timeout = timeout});
      if (end[0] == 'a') alone.Abort("enough");
      if (end[0] != 't') seen = FailureOf(eng, alone.var()).text;
    }
    ExpectHas(seen, "rank 0 of 2: ");
    ExpectHas(seen, end);
  }
}

TEST_F(Nccl, ADeadRankDoesNotKeepTheEngineFromEnding) {
  Ranks ranks(2, {}, kNccl);
  const Ranks::Buffer g = ranks.New(0, 1);
  ranks.AllReduce(0, g);
  while (ranks.eng().device_stats().issued < 3) std::this_thread::yield();
  ranks.engine.reset();
}

// Each waits for the others there, and there are fewer threads that may wait than ranks: one, or whoever ends the engine.
TEST_F(Nccl, RanksLeaveTogetherOnAsFewThreadsAsThereAre) {
  for (const bool outlive_the_engine : {false, true}) {
    std::vector<Communicator> ranks;
    EngineOptions options = Quiet(1);
    for (int i = 0; i < 4; ++i) options.devices.push_back(MakeCudaDevice(i));
    options.io_threads = 1;
    Engine eng(options);
    const int devices[] = {0, 1, 2, 3};
    ranks = NewCommunicators(eng, devices);
    if (!outlive_the_engine) ranks.clear();
    eng.WaitAll();
  }
  EXPECT_EQ(ncclModelCalls("ncclCommAbort"), aborts_);
}

// What is put on a stream until its queue is full makes the call wait, with a lock that every other call of CUDA's needs: the
// retirement thread, too, is stuck, and the timeout must come from elsewhere.
TEST_F(Nccl, ATimeoutEndsACollectiveBehindWhichALaunchIsStuck) {
  Ranks ranks(2, {.name = "timed", .timeout = std::chrono::milliseconds(50)}, kNccl);
  Engine& eng = ranks.eng();
  const Ranks::Buffer g = ranks.New(0, 1), apart = ranks.New(0, 1);
  for (const Communicator& c : ranks.comms) eng.Wait(c.var());
  const long blocked = cudaModelBlockedLaunches();
  ranks.AllReduce(0, g);  // rank 1 never does
  eng.Push({.name = "many", .reads = g.var, .place = Gpu(0)}, [](RunContext& ctx) {
    for (int i = 0; i < 1100; ++i)
      if (cudaLaunchHostFunc(
              CudaStream(ctx), [](void*) {}, nullptr) != cudaSuccess)
        throw std::runtime_error("launch");
  });
  ExpectHas(ranks.ErrorOf(g.var), "within the timeout of 50 ms");
  EXPECT_GT(cudaModelBlockedLaunches(), blocked);
  ranks.Fill(eng, apart, {3});
  EXPECT_EQ(ranks.Read(apart), Floats{3});
  ranks.SeeErrors();
}

// ncclCommAbort may wait for the device. Meanwhile what ends there is found out.
TEST_F(Nccl, AnAbortThatWaitsForTheDeviceKeepsNobodyElseWaiting) {
  ncclModelAbortWaits(true);
  {
    Ranks ranks(2, {}, kNccl);
    Engine& eng = ranks.eng();
    const Ranks::Buffer g = ranks.New(0, 1), held = ranks.New(0, 1), apart = ranks.New(0, 1);
    Gate gate;
    ranks.AllReduce(0, g);  // rank 1 never does
    ranks.Kernel(eng, 0, {.name = "held", .writes = held.var}, [&] { gate.Wait(); });
    while (eng.device_stats().issued < 4) std::this_thread::yield();
    ranks.comms[0].Abort("enough");
    ExpectHas(ranks.ErrorOf(g.var), "aborted: enough");
    eng.Push({.name = "apart", .writes = apart.var, .place = CopyIn(0)}, [](RunContext& ctx) {
      if (cudaLaunchHostFunc(
              CudaStream(ctx), [](void*) {}, nullptr) != cudaSuccess)
        throw std::runtime_error("launch");
    });
    EXPECT_TRUE(eng.WaitFor(apart.var, 10s));
    gate.Open();
    eng.Wait(held.var);
    ranks.SeeErrors();
  }
  ncclModelAbortWaits(false);
}

// Ranks of one process read each other's buffers where they are.
TEST_F(Nccl, RanksMayUseBuffersOfTheEnginesPool) {
  Ranks ranks(2, {}, kNccl);
  Engine& eng = ranks.eng();
  std::array<DeviceMemory, 2> memory;
  std::array<Var, 2> vars{eng.NewVar(), eng.NewVar()};
  for (size_t r = 0; r < 2; ++r)
    eng.Push({.name = "make", .writes = vars[r], .place = Gpu(static_cast<uint16_t>(r))},
             [&, r](RunContext& ctx) { memory[r] = ctx.Allocate(sizeof(float)); });
  eng.WaitAll();
  for (size_t r = 0; r < 2; ++r)
    ranks.comms[r].Push(eng, {.updates = vars[r]}, {Collective::AllReduce(memory[r].data(), memory[r].data(), 1)});
  eng.WaitAll();
}

// Rank 0 has the input of the first communicator's collective late, rank 1 that of the second's.
TEST_F(Nccl, CommunicatorsOfOneDeviceRunInPushOrder) {
  const std::chrono::milliseconds timeout(5000);  // not met
  Ranks ranks(2, {.name = "first", .timeout = timeout}, kNccl);
  Engine& eng = ranks.eng();
  const CommunicatorId id = NewCommunicatorId(ranks.device());
  std::vector<Communicator> second;
  for (int r = 0; r < 2; ++r)
    second.emplace_back(
        eng, CommunicatorOptions{.name = "second", .device = r, .rank = r, .size = 2, .id = id, .timeout = timeout});
  std::array<Ranks::Buffer, 2> a{ranks.New(0, 1), ranks.New(1, 1)}, b{ranks.New(0, 1), ranks.New(1, 1)};
  for (int r = 0; r < 2; ++r) {
    ranks.Fill(eng, a[static_cast<size_t>(r)], {1});
    ranks.Fill(eng, b[static_cast<size_t>(r)], {2});
  }
  eng.WaitAll();
  Gate gate;
  ranks.Kernel(eng, 0, {.name = "late", .updates = a[0].var}, [&] { gate.Wait(); });
  ranks.Kernel(eng, 1, {.name = "late", .updates = b[1].var}, [&] { gate.Wait(); });
  const uint64_t before = eng.device_stats().issued;
  for (size_t r = 0; r < 2; ++r) {
    ranks.AllReduce(static_cast<int>(r), a[r]);
    second[r].Push(eng, {.name = "reduce", .updates = b[r].var}, {Collective::AllReduce(b[r].data, b[r].data, 1)});
  }
  while (eng.device_stats().issued < before + 4) std::this_thread::yield();
  gate.Open();
  for (size_t r = 0; r < 2; ++r) {
    EXPECT_EQ(ranks.Read(a[r]), Floats{2});
    EXPECT_EQ(ranks.Read(b[r]), Floats{4});
  }
}

// NCCL would hang. The model ends it, and the ranks hear of that.
TEST_F(Nccl, RanksThatDoNotFitTogetherAreNoticedByTheModel) {
  Ranks ranks(2, {}, kNccl);
  const std::array<Ranks::Buffer, 2> g{ranks.New(0, 4), ranks.New(1, 8)};
  for (int r = 0; r < 2; ++r) ranks.AllReduce(r, g[static_cast<size_t>(r)]);
  for (const Ranks::Buffer& b : g) ExpectHas(ranks.ErrorOf(b.var), "internal error");
  EXPECT_EQ(cudaModelViolations(), 1);
  ExpectHas(cudaModelLastViolation(), "ncclAllReduce of 8");
  ExpectHas(cudaModelLastViolation(), "ncclAllReduce of 4");
  cudaModelForgive();
  ranks.SeeErrors();
}

// Each line is one rule of the user guide's; who breaks it, is told.
TEST_F(Nccl, TheModelIsStrict) {
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  cudaStream_t stream{}, others{};
  void *memory = nullptr, *pinned = nullptr;
  ASSERT_EQ(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&memory, 64), cudaSuccess);
  ASSERT_EQ(cudaHostAlloc(&pinned, 64, cudaHostAllocDefault), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  ASSERT_EQ(cudaStreamCreateWithPriority(&others, cudaStreamNonBlocking, 0), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  auto* const at = static_cast<float*>(memory);
  ncclComm_t one = nullptr, blocking = nullptr;
  ncclUniqueId id;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  ASSERT_EQ(ncclCommInitRankConfig(&one, 1, id, 0, &config), ncclInProgress);
  const auto reduce = [&](const void* send, void* recv, cudaStream_t on) {
    return ncclAllReduce(send, recv, 2, ncclFloat32, ncclSum, one, on);
  };
  const auto broken = [&](const char* rule, ncclResult_t given, ncclResult_t expected) {
    EXPECT_EQ(given, expected) << rule;
    EXPECT_EQ(cudaModelViolations(), 1) << rule;
    ExpectHas(cudaModelLastViolation(), rule);
    cudaModelForgive();
  };
  const auto until_done = [&] {
    ncclResult_t result = ncclInProgress;
    while (result == ncclInProgress) ASSERT_EQ(ncclCommGetAsyncError(one, &result), ncclSuccess);
    EXPECT_EQ(result, ncclSuccess);
  };
  broken("still in progress", reduce(at, at, stream), ncclInvalidArgument);
  broken("still in progress", ncclCommDestroy(one), ncclInvalidArgument);
  until_done();
  broken("overlap", reduce(at, at + 1, stream), ncclInvalidArgument);
  broken("receive buffer", reduce(at, pinned, stream), ncclInvalidArgument);
  broken("send buffer", reduce(at + 15, at, stream), ncclInvalidArgument);
  broken("another device", reduce(at, at, others), ncclInvalidArgument);
  broken("no such rank", ncclBroadcast(at, at, 1, ncclFloat32, 1, one, stream), ncclInvalidArgument);
  broken("not in a group", ncclGroupEnd(), ncclInvalidUsage);
  EXPECT_EQ(reduce(at, at, stream), ncclSuccess) << "alone it waits for nobody";
  EXPECT_EQ(ncclCommFinalize(one), ncclInProgress);
  broken("finalized", reduce(at, at, stream), ncclInvalidUsage);
  until_done();
  EXPECT_EQ(ncclCommDestroy(one), ncclSuccess);
  broken("was destroyed", ncclCommDestroy(one), ncclInvalidArgument);
  ASSERT_EQ(ncclCommInitAll(&blocking, 1, nullptr), ncclSuccess);
  EXPECT_EQ(ncclAllReduce(at, at, 2, ncclFloat32, ncclSum, blocking, stream), ncclSuccess);
  EXPECT_EQ(ncclCommDestroy(blocking), ncclSuccess);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(others), cudaSuccess);
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Nccl, Communicators, testing::Values(&kNccl));

}  // namespace engine::test
