// Collectives, over each backend: what they compute, how they are grouped, and that every rank runs them in push order.
#include <cmath>
#include <cstring>

#include "comm_rig.h"
#include "engine/bulk.h"
#include "engine/plan.h"
#include "engine/spi/smart_step.h"
#include "engine/testing/bulk_clock.h"
#include "support/seed.h"

namespace engine::test {
namespace {

using Floats = std::vector<float>;

TEST_P(Communicators, EachGivesWhatItsNameSays) {
  Ranks ranks(3, {}, place());
  Engine& eng = ranks.eng();
  std::vector<Ranks::Buffer> in, sum, cast, scattered, gathered;
  for (int r = 0; r < 3; ++r) {
    in.push_back(ranks.New(r, 6));
    sum.push_back(ranks.New(r, 6));
    cast.push_back(ranks.New(r, 6));
    scattered.push_back(ranks.New(r, 2));
    gathered.push_back(ranks.New(r, 18));
    const auto f = static_cast<float>(r);
    ranks.Fill(eng, in.back(), {f, f + 10, f + 20, f + 30, f + 40, f + 50});
    const auto i = static_cast<size_t>(r);
    Communicator& comm = ranks.comms[i];
    comm.Push(eng, {.reads = in[i].var, .writes = sum[i].var}, {Collective::AllReduce(in[i].data, sum[i].data, 6)});
    comm.Push(eng, {.reads = in[i].var, .writes = cast[i].var},
              {Collective::Broadcast(in[i].data, cast[i].data, 6, DataType::kFloat32, 2)});
    comm.Push(eng, {.reads = in[i].var, .writes = scattered[i].var},
              {Collective::ReduceScatter(in[i].data, scattered[i].data, 2, DataType::kFloat32, Reduction::kMax)});
    comm.Push(eng, {.reads = in[i].var, .writes = gathered[i].var},
              {Collective::AllGather(in[i].data, gathered[i].data, 6)});
  }
  for (int r = 0; r < 3; ++r) {
    const auto i = static_cast<size_t>(r);
    const auto f = static_cast<float>(r);
    EXPECT_EQ(ranks.Read(sum[i]), (Floats{3, 33, 63, 93, 123, 153}));
    EXPECT_EQ(ranks.Read(cast[i]), (Floats{2, 12, 22, 32, 42, 52}));
    EXPECT_EQ(ranks.Read(scattered[i]), (Floats{20 * f + 2, 20 * f + 12}));
    EXPECT_EQ(ranks.Read(gathered[i]), (Floats{0, 10, 20, 30, 40, 50, 1, 11, 21, 31, 41, 51, 2, 12, 22, 32, 42, 52}));
    EXPECT_EQ(ranks.comms[i].stats().groups, 4u);
    ranks.ExpectCalls(i, DeviceCall::kSynchronize, 5);  // those of the test's own buffers
  }
}

// Two ranks that bring one value each, of any type, as bytes.
template <class T>
T Reduced(const RanksOn& place, T a, T b, DataType type, Reduction reduction) {
  Ranks ranks(2, {}, place);
  T out{};
  std::array<Ranks::Buffer, 2> buffers{ranks.New(0, 2), ranks.New(1, 2)};
  for (size_t r = 0; r < 2; ++r) {
    ranks.Kernel(ranks.eng(), static_cast<int>(r), {.writes = buffers[r].var},
                 [&, r] { std::memcpy(buffers[r].data, r == 0 ? &a : &b, sizeof(T)); });
    ranks.comms[r].Push(ranks.eng(), {.updates = buffers[r].var},
                        {Collective::AllReduce(buffers[r].data, buffers[r].data, 1, type, reduction)});
  }
  const Var done = ranks.eng().NewVar();
  ranks.Kernel(ranks.eng(), 1, {.reads = buffers[1].var, .writes = done},
               [&] { std::memcpy(&out, buffers[1].data, sizeof(T)); });
  ranks.eng().Wait(done);
  return out;
}

TEST_P(Communicators, EveryTypeIsReduced) {
  EXPECT_EQ(Reduced<int8_t>(place(), -3, 5, DataType::kInt8, Reduction::kMin), -3);
  EXPECT_EQ(Reduced<uint8_t>(place(), 200, 40, DataType::kUint8, Reduction::kSum), 240);
  EXPECT_EQ(Reduced<int32_t>(place(), -3, 5, DataType::kInt32, Reduction::kProduct), -15);
  EXPECT_EQ(Reduced<uint32_t>(place(), 3, 5, DataType::kUint32, Reduction::kMax), 5u);
  EXPECT_EQ(Reduced<int64_t>(place(), int64_t{1} << 40, 2, DataType::kInt64, Reduction::kSum), (int64_t{1} << 40) + 2);
  EXPECT_EQ(Reduced<uint64_t>(place(), 8, 4, DataType::kUint64, Reduction::kAverage), 6u);
  EXPECT_EQ(Reduced<double>(place(), 0.5, 0.25, DataType::kFloat64, Reduction::kSum), 0.75);
  EXPECT_EQ(Reduced<uint16_t>(place(), 0x3c00, 0xc100, DataType::kFloat16, Reduction::kSum), 0xbe00);       // 1 + -2.5
  EXPECT_EQ(Reduced<uint16_t>(place(), 0x0001, 0x0001, DataType::kFloat16, Reduction::kSum), 0x0002);       // subnormal
  EXPECT_EQ(Reduced<uint16_t>(place(), 0x7bff, 0x7bff, DataType::kFloat16, Reduction::kSum), 0x7c00);       // overflows
  EXPECT_EQ(Reduced<uint16_t>(place(), 0x3f80, 0x40a0, DataType::kBfloat16, Reduction::kAverage), 0x4040);  // 1 and 5
}

TEST_P(Communicators, CallsOfOnePushAreOneLaunch) {
  Ranks ranks(2, {}, place());
  std::array<std::vector<Ranks::Buffer>, 2> gradients;
  for (size_t r = 0; r < 2; ++r) {
    std::vector<Var> vars;
    std::vector<Collective> calls;
    for (size_t i = 0; i < 8; ++i) {
      const Ranks::Buffer& g = gradients[r].emplace_back(ranks.New(static_cast<int>(r), i + 1));
      ranks.Fill(ranks.eng(), g, Floats(i + 1, static_cast<float>(i)));
      vars.push_back(g.var);
      calls.push_back(Collective::AllReduce(g.data, g.data, g.n));
    }
    ranks.comms[r].Push(ranks.eng(), {.name = "gradients", .updates = vars}, calls);
  }
  for (size_t r = 0; r < 2; ++r) {
    for (size_t i = 0; i < 8; ++i) EXPECT_EQ(ranks.Read(gradients[r][i]), Floats(i + 1, static_cast<float>(2 * i)));
    EXPECT_EQ(ranks.comms[r].stats().collectives, 8u);
    EXPECT_EQ(ranks.comms[r].stats().groups, 1u);
    ranks.ExpectCalls(r, DeviceCall::kLaunch, 8 + 1 + 8);  // fills, the group, reads
  }
}

// Each rank hands its values to the next one: sends that wait for receives behind them would never end.
TEST_P(Communicators, SendsAndReceivesOfAGroupRunTogether) {
  constexpr int kRanks = 4;
  Ranks ranks(kRanks, {}, place());
  std::vector<Ranks::Buffer> mine, theirs;
  for (int r = 0; r < kRanks; ++r) {
    mine.push_back(ranks.New(r, 1));
    theirs.push_back(ranks.New(r, 1));
    ranks.Fill(ranks.eng(), mine.back(), {static_cast<float>(r)});
    ranks.comms[static_cast<size_t>(r)].Push(
        ranks.eng(), {.name = "shift", .reads = mine.back().var, .writes = theirs.back().var},
        {Collective::Send(mine.back().data, 1, DataType::kFloat32, (r + 1) % kRanks),
         Collective::Recv(theirs.back().data, 1, DataType::kFloat32, (r + kRanks - 1) % kRanks)});
  }
  for (int r = 0; r < kRanks; ++r)
    EXPECT_EQ(ranks.Read(theirs[static_cast<size_t>(r)]), Floats{static_cast<float>((r + kRanks - 1) % kRanks)});
}

TEST_P(Communicators, ABulkOfCollectivesIsOneDispatchAndOneRecord) {
  Ranks ranks(2, {}, place());
  Engine& eng = ranks.eng();
  eng.WaitAll();  // the ranks have joined
  std::array<Ranks::Buffer, 2> g{ranks.New(0, 1), ranks.New(1, 1)};
  const uint64_t records = eng.device_stats().records, dispatches = eng.stats().dispatches;
  const ManualBulkClock bulk_clock;
  for (int r = 0; r < 2; ++r) {
    Bulk bulk(eng, 10);
    for (int i = 0; i < 10; ++i) ranks.AllReduce(r, g[static_cast<size_t>(r)]);
  }
  eng.WaitAll();
  EXPECT_EQ(eng.device_stats().records - records, 2u);
  EXPECT_EQ(eng.stats().dispatches - dispatches, 2u);
  EXPECT_EQ(ranks.comms[0].stats().groups, 10u) << "groups are the program's, not the bulk's";
}

// A program of kernels and collectives on a few buffers a rank, its serial result, and its way through an engine.
struct RandomProgram {
  struct Step {
    enum class Kind { kScale, kAllReduce, kBroadcast, kGroup } kind;
    size_t a, b;
    int root;
    int priority;
  };
  static constexpr size_t kBuffers = 3;
  std::vector<Step> steps;

  explicit RandomProgram(Random& chance, int ranks) {
    for (int i = 0; i < 60; ++i) {
      const size_t a = chance.Below(kBuffers);
      steps.push_back({static_cast<Step::Kind>(chance.Below(4)), a, (a + 1) % kBuffers,
                       static_cast<int>(chance.Below(static_cast<uint32_t>(ranks))),
                       static_cast<int>(chance.Below(5)) - 2});
    }
  }
  // [rank][buffer]
  static float Wrapped(float v) { return std::fmod(v, 1009.0f); }
  std::vector<std::array<float, kBuffers>> Serial(int ranks) const {
    std::vector<std::array<float, kBuffers>> v(static_cast<size_t>(ranks));
    for (size_t r = 0; r < v.size(); ++r)
      for (size_t i = 0; i < kBuffers; ++i) v[r][i] = static_cast<float>(10 * r + i + 1);
    const auto all_reduce = [&](size_t i) {
      float sum = 0;
      for (auto& rank : v) sum += rank[i];
      for (auto& rank : v) rank[i] = sum;
    };
    for (const Step& s : steps) {
      for (size_t r = 0; s.kind == Step::Kind::kScale && r < v.size(); ++r)
        v[r][s.a] = Wrapped(3 * v[r][s.a] + static_cast<float>(r));
      if (s.kind == Step::Kind::kAllReduce || s.kind == Step::Kind::kGroup) all_reduce(s.a);
      if (s.kind == Step::Kind::kGroup) all_reduce(s.b);
      if (s.kind == Step::Kind::kBroadcast)
        for (auto& rank : v) rank[s.a] = v[static_cast<size_t>(s.root)][s.a];
    }
    return v;
  }
  void Push(Ranks& ranks, Submitter& to, int rank, const std::vector<Ranks::Buffer>& buffers) const {
    Communicator& comm = ranks.comms[static_cast<size_t>(rank)];
    for (const Step& s : steps) {
      const Ranks::Buffer &a = buffers[s.a], &b = buffers[s.b];
      switch (s.kind) {
        case Step::Kind::kScale:
          ranks.Kernel(to, rank, {.name = "scale", .updates = a.var, .priority = s.priority},
                       [a, rank] { *a.data = Wrapped(3 * *a.data + static_cast<float>(rank)); });
          break;
        case Step::Kind::kAllReduce:
          comm.Push(to, {.updates = a.var, .priority = s.priority}, {Collective::AllReduce(a.data, a.data, 1)});
          break;
        case Step::Kind::kBroadcast:
          comm.Push(to, {.updates = a.var, .priority = s.priority},
                    {Collective::Broadcast(a.data, a.data, 1, DataType::kFloat32, s.root)});
          break;
        case Step::Kind::kGroup:
          comm.Push(to, {.updates = {a.var, b.var}, .priority = s.priority},
                    {Collective::AllReduce(a.data, a.data, 1), Collective::AllReduce(b.data, b.data, 1)});
          break;
      }
    }
  }
};

void RunRandom(const RanksOn& place, Policy policy, int bulk_size, bool as_plan) {
  SCOPED_TRACE(SeedLine() + ", " + std::string(PolicyName(policy)) + ", bulks of " + std::to_string(bulk_size));
  Random chance(Seed());
  constexpr int kRanks = 3;
  const RandomProgram program(chance, kRanks);
  Ranks ranks(kRanks, {}, place);
  Engine& eng = ranks.eng();
  eng.SetPolicy(policy);
  std::vector<std::vector<Ranks::Buffer>> buffers(kRanks);
  for (int r = 0; r < kRanks; ++r)
    for (size_t i = 0; i < RandomProgram::kBuffers; ++i) {
      const auto at = static_cast<size_t>(r);
      buffers[at].push_back(ranks.New(r, 1));
      ranks.Fill(eng, buffers[at].back(), {static_cast<float>(10 * at + i + 1)});
    }
  for (int r = 0; r < kRanks; ++r) {
    const auto at = static_cast<size_t>(r);
    if (as_plan) {
      Graph graph;
      Capture capture(graph);
      program.Push(ranks, capture, r, buffers[at]);
      (void)graph.Compile(eng).Start({}, {.policy = policy, .priority = {}});
    } else if (bulk_size == 0) {
      program.Push(ranks, eng, r, buffers[at]);
    } else {
      Bulk bulk(eng, bulk_size);
      program.Push(ranks, eng, r, buffers[at]);
    }
  }
  const auto serial = program.Serial(kRanks);
  for (size_t r = 0; r < kRanks; ++r)
    for (size_t i = 0; i < RandomProgram::kBuffers; ++i)
      EXPECT_EQ(ranks.Read(buffers[r][i]), Floats{serial[r][i]}) << "rank " << r << ", buffer " << i;
}

TEST_P(Communicators, RandomProgramsGiveTheSerialResultUnderEveryPolicyAndBulkSize) {
  for (const Policy policy : {Policy::kThreaded, Policy::kInline, Policy::kNaive, Policy::kCostModel})
    for (const int bulk_size : {0, 3, 64}) RunRandom(place(), policy, bulk_size, false);
}

TEST_P(Communicators, APlanKeepsThePushOrderOnEveryRank) {
  for (const Policy policy : {Policy::kThreaded, Policy::kCostModel}) RunRandom(place(), policy, 0, true);
}

TEST(CommunicatorsOfSoftware, SmartStageLeavesCollectivesInTheStep) {
  Ranks ranks(1);
  Engine& eng = ranks.eng();
  const Ranks::Buffer g = ranks.New(0, 1);
  Graph step;
  const ValueId x = step.Input<int>("x");
  const NodeId parse = step.Add({.name = "parse", .inputs = {x}, .outputs = 1},
                                [](NodeContext& ctx) { ctx.Return(0, ctx.In<int>(0) + 1); });
  const NodeId show = step.Add({.name = "show", .inputs = {parse[0]}, .outputs = 1},
                               [](NodeContext& ctx) { ctx.Return(0, ctx.In<int>(0)); });
  step.Output(show[0]);
  Capture capture(step);
  ranks.comms[0].Push(capture, {.name = "reduce", .updates = g.var}, {Collective::AllReduce(g.data, g.data, 1)});
  SmartStageOptions options;
  options.stage.capacity = 1;
  options.profile_steps = 0;
  options.input_state = {g.var, ranks.comms[0].var()};
  const SmartStep smart(eng, step, {x}, options);
  const auto nodes = smart.Report().nodes;
  ASSERT_EQ(nodes.size(), 3u);
  EXPECT_EQ(nodes[0].reason, "");
  EXPECT_EQ(nodes[2].reason, "is a collective: every process must run it in the same order");
}

TEST(CommunicatorsOfSoftware, WhatCannotBeCalledIsRefusedAndNamed) {
  Ranks ranks(2);
  Engine& eng = ranks.eng();
  Communicator& comm = ranks.comms[0];
  const Ranks::Buffer g = ranks.New(0, 1);
  const auto refused = [&](const OpDesc& desc, std::initializer_list<Collective> calls, const char* says) {
    try {
      comm.Push(eng, desc, calls);
      ADD_FAILURE() << "not refused: " << says;
    } catch (const UsageError& error) {
      ExpectHas(error.what(), says);
    }
  };
  const Collective good = Collective::AllReduce(g.data, g.data, 1);
  refused({}, {}, "has no calls");
  refused({.place = Gpu(0)}, {good}, "has a place");
  refused({.graph = {.kind = 1}}, {good}, "has a GraphKey");
  refused({}, {Collective::AllReduce(nullptr, g.data, 1)}, "all_reduce has a null send buffer");
  refused({}, {Collective::AllReduce(g.data, nullptr, 1)}, "all_reduce has a null receive buffer");
  refused({}, {Collective::Send(g.data, 1, DataType::kFloat32, 2)}, "send names rank 2; 0 to 1 are allowed");
  refused({}, {Collective::Recv(g.data, 1, DataType::kFloat32, 0)}, "recv names its own rank");
  const auto unmade = [&](CommunicatorOptions options, const char* says) {
    try {
      const Communicator made(eng, options);
      ADD_FAILURE() << "not refused: " << says;
    } catch (const Error& error) {
      ExpectHas(error.what(), says);
    }
  };
  unmade({.rank = 2, .size = 2, .id = ranks.id}, "rank 2 of 2");
  unmade({.size = 2}, "its id is empty");
  unmade({.device = 7, .id = ranks.id}, "no device 7");
  SoftwareDeviceOptions clock;
  clock.clock = SoftwareDeviceOptions::Clock::kVirtual;
  Rig virtual_rig(clock);
  try {
    const Communicator made(virtual_rig.eng(), {.size = 2, .id = ranks.id});
    ADD_FAILURE();
  } catch (const CommunicatorError& error) {
    ExpectHas(error.what(), "virtual clock");
  }
}

TEST_P(Communicators, ACommunicatorLeavesBehindItsLastCollective) {
  Ranks ranks(2, {}, place());
  Engine& eng = ranks.eng();
  const CommunicatorId id = NewCommunicatorId(ranks.device());
  std::array<Ranks::Buffer, 2> g{ranks.New(0, 1), ranks.New(1, 1)};
  for (int r = 0; r < 2; ++r) {
    const Ranks::Buffer& mine = g[static_cast<size_t>(r)];
    ranks.Fill(eng, mine, {1.0f});
    Communicator comm(eng, {.name = "short", .device = r, .rank = r, .size = 2, .id = id});
    comm.Push(eng, {.updates = mine.var}, {Collective::AllReduce(mine.data, mine.data, 1)});
  }  // rank 0's handle goes before rank 1 has come
  EXPECT_EQ(ranks.Read(g[0]), Floats{2});
  EXPECT_EQ(ranks.Read(g[1]), Floats{2});
}

// The lane and the thread of one that has left are taken again.
TEST_P(Communicators, AnyNumberMayComeAndGo) {
  Ranks ranks(1, {}, place());
  Engine& eng = ranks.eng();
  const Ranks::Buffer g = ranks.New(0, 1);
  for (int i = 0; i < 100; ++i) {
    Communicator comm(eng, {.id = NewCommunicatorId(ranks.device())});
    comm.Push(eng, {.updates = g.var}, {Collective::AllReduce(g.data, g.data, 1)});
    comm = Communicator(eng, {.id = NewCommunicatorId(ranks.device())});
    eng.WaitAll();
  }
  EXPECT_LE(eng.device_stats().lanes, 4u);
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Software, Communicators, testing::Values(&kSoftware));

}  // namespace engine::test
