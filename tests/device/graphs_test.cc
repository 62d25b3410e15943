// Bulks that come again are launched as graphs: the same results, order, names and counts, and no body is run.
#include <optional>

#include "device_test.h"

namespace engine::test {
namespace {

// A model of four layers in place on a software device: each member is one kernel with a scalar.
struct Model {
  explicit Model(Rig& r, int members = 4) : rig(r), values(static_cast<size_t>(members), 0), held(r.eng()) {
    for (int i = 0; i <= members; ++i) vars.push_back(r.eng().NewVar());
  }
  // `one_call` false: as if the body made several calls.
  void Step(int scalar, bool one_call = true) {
    for (size_t i = 0; i + 1 < vars.size(); ++i) {
      held.Push({.name = "layer",
                 .reads = {vars[i]},
                 .writes = {vars[i + 1]},
                 .place = Gpu(0),
                 .graph = {.kind = 100 + i, .params = static_cast<uint64_t>(scalar), .one_call = one_call}},
                [this, i, scalar](RunContext& ctx) {
                  ++bodies;
                  rig.Launch(ctx, "layer", [this, i, scalar] { values[i] = scalar + (i ? values[i - 1] : 0); });
                });
    }
    held.Release();
  }
  void Check(int scalar) {
    rig.eng().WaitAll();
    for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], scalar * static_cast<int>(i + 1));
  }
  Rig& rig;
  std::vector<int> values;  // goes after the Vars, which keep the device
  std::atomic<int> bodies{0};
  HeldOps held;
  std::vector<Var> vars;
};

TEST(DeviceGraphs, AfterTwoEagerRunsOneIsCapturedAndLaterOnesAreLaunched) {
  Rig rig;
  Model model(rig);
  for (int run = 0; run < 10; ++run) {
    model.Step(3);
    model.Check(3);
    std::fill(model.values.begin(), model.values.end(), 0);
  }
  EXPECT_EQ(model.bodies, 12) << "two eager runs and the capture";
  const DeviceStats stats = rig.eng().device_stats();
  EXPECT_EQ(stats.graph_instantiations, 1u);
  EXPECT_EQ(stats.graph_launches, 8u);
  EXPECT_EQ(stats.graph_updates, 0u);
  EXPECT_EQ(stats.issued, 40u);
  EXPECT_EQ(rig.eng().stats().dispatches, 10u);
  EXPECT_EQ(rig.device().counts()[DeviceCall::kRecord], 10u);
  EXPECT_EQ(rig.device().counts()[DeviceCall::kSynchronize], 0u);
}

TEST(DeviceGraphs, ChangedParamsUpdateTheNodes) {
  Rig rig;
  Model model(rig);
  for (int run = 0; run < 20; ++run) {
    model.Step(run / 5);
    model.Check(run / 5);
  }
  const DeviceStats stats = rig.eng().device_stats();
  EXPECT_EQ(stats.graph_instantiations, 1u);
  EXPECT_EQ(stats.graph_updates, 3u * 4);
  EXPECT_EQ(rig.device().counts()[DeviceCall::kUpdateNode], 12u);
  EXPECT_EQ(rig.device().counts()[DeviceCall::kUpdate], 0u);
}

TEST(DeviceGraphs, BodiesOfSeveralCallsAreCapturedAnewAndTheExecutableUpdated) {
  Rig rig;
  Model model(rig);
  for (int run = 0; run < 20; ++run) {
    model.Step(run / 5, false);
    model.Check(run / 5);
  }
  EXPECT_EQ(rig.device().counts()[DeviceCall::kUpdate], 3u);
  EXPECT_EQ(rig.eng().device_stats().graph_instantiations, 1u);
}

TEST(DeviceGraphs, StructureThatAlwaysChangesIsLeftEager) {
  Rig rig;
  Model model(rig);
  for (int run = 0; run < 60; ++run) {
    model.Step(run, false);
    model.Check(run);
  }
  const uint64_t captures = rig.eng().device_stats().graph_captures;
  EXPECT_LT(captures, 30u);
  for (int run = 60; run < 80; ++run) {
    model.Step(run, false);
    model.Check(run);
  }
  EXPECT_EQ(rig.eng().device_stats().graph_captures, captures);
}

TEST(DeviceGraphs, ALaunchWaitsForWhatItsMembersNeedFromOtherLanes) {
  Rig rig;
  Model model(rig);
  Var other = rig.eng().NewVar("other");
  for (int run = 0; run < 6; ++run) {
    model.Step(1);
    model.Check(1);
  }
  std::atomic<bool> before{false};
  const uint64_t hold = rig.PushHeldKernel({.writes = {model.vars[0]}, .place = Gpu(0, 9)});
  rig.Push({.updates = {model.vars[0]}, .place = Gpu(0, 9)}, [&] { before = true; });
  std::fill(model.values.begin(), model.values.end(), 0);
  model.Step(1);
  EXPECT_FALSE(rig.eng().WaitFor(model.vars.back(), 0s));
  EXPECT_EQ(model.values[0], 0);
  rig.device().Release(hold);
  model.Check(1);
  EXPECT_TRUE(before);
  EXPECT_EQ(rig.eng().device_stats().graph_launches, 5u);
}

TEST(DeviceGraphs, ARunThatCouldSplitIsEager) {
  Rig rig;
  Model model(rig);
  for (int run = 0; run < 5; ++run) {
    model.Step(1);
    model.Check(1);
  }
  const uint64_t launches = rig.eng().device_stats().graph_launches;
  // A reader from outside of a Var that a member in the middle writes.
  HeldOp reader = rig.eng().PushHeld({.reads = {model.vars[3]}}, [] {});
  model.Step(2);
  rig.eng().Wait(model.vars[1]);
  EXPECT_FALSE(rig.eng().WaitFor(model.vars[3], 0s));
  reader.Release();
  model.Check(2);
  EXPECT_EQ(rig.eng().device_stats().graph_launches, launches);
}

TEST(DeviceGraphs, ReadersInsideTheRunDoNotKeepItFromBeingOne) {
  Rig rig;
  Var a = rig.eng().NewVar("a"), b = rig.eng().NewVar("b"), c = rig.eng().NewVar("c");
  HeldOps held(rig.eng());
  const auto kernel = [&](RunContext& ctx) { rig.Launch(ctx, "k"); };
  for (int run = 0; run < 6; ++run) {
    held.Push({.writes = {a}, .place = Gpu(0), .graph = {.kind = 1}}, kernel);
    held.Push({.reads = {a}, .writes = {b}, .place = Gpu(0), .graph = {.kind = 2}}, kernel);
    held.Push({.reads = {a, b}, .writes = {c}, .place = Gpu(0), .graph = {.kind = 3}}, kernel);
    held.Push({.reads = {c}, .updates = {a}, .place = Gpu(0), .graph = {.kind = 4}}, kernel);
    held.Release();
    rig.eng().WaitAll();
  }
  EXPECT_EQ(rig.eng().device_stats().graph_launches, 4u);
}

// Each member has a Var of its own, and reads that of the one before.
TEST(DeviceGraphs, ARunOverAThousandVarsIsOneUnlessItCouldSplit) {
  constexpr uint64_t kMembers = 1000;
  Rig rig;
  std::vector<Var> vars;
  for (uint64_t i = 0; i <= kMembers; ++i) vars.push_back(rig.eng().NewVar());
  HeldOps held(rig.eng());
  int value = 0;
  const auto step = [&] {
    for (uint64_t i = 0; i < kMembers; ++i)
      held.Push({.reads = {vars[i]}, .updates = {vars[i + 1]}, .place = Gpu(0), .graph = {.kind = 1 + i}},
                [&](RunContext& ctx) { rig.Launch(ctx, "k", [&] { ++value; }); });
    held.Release();
  };
  for (int run = 1; run <= 4; ++run) {
    step();
    rig.eng().WaitAll();
    EXPECT_EQ(value, run * static_cast<int>(kMembers));
  }
  EXPECT_EQ(rig.eng().device_stats().graph_launches, 2u);
  for (const uint64_t at : {uint64_t{1}, kMembers / 2, kMembers}) {  // a reader from outside of what a member writes
    HeldOp reader = rig.eng().PushHeld({.reads = {vars[at]}}, [] {});
    step();
    if (at != 1) rig.eng().Wait(vars[1]);  // else the first member waits, and so does the run
    reader.Release();
    rig.eng().WaitAll();
  }
  EXPECT_EQ(value, 7 * static_cast<int>(kMembers));
  EXPECT_EQ(rig.eng().device_stats().graph_launches, 3u) << "the run behind the first reader";
}

TEST(DeviceGraphs, AMemberWithoutAKeyKeepsTheBulkEager) {
  Rig rig;
  Var a = rig.eng().NewVar("a");
  HeldOps held(rig.eng());
  const auto kernel = [&](RunContext& ctx) { rig.Launch(ctx, "k"); };
  for (int run = 0; run < 6; ++run) {
    held.Push({.updates = {a}, .place = Gpu(0), .graph = {.kind = 1}}, kernel);
    held.Push({.updates = {a}, .place = Gpu(0)}, kernel);
    held.Release();
    rig.eng().Wait(a);
  }
  EXPECT_EQ(rig.eng().device_stats().graph_launches, 0u);
}

// The number of calls that a body makes is no part of its kind: the executable cannot be updated, so another is made.
TEST(DeviceGraphs, AStructureThatCannotBeUpdatedIsInstantiatedAnew) {
  Rig rig;
  Var a = rig.eng().NewVar("a");
  HeldOps held(rig.eng());
  int ran = 0, expected = 0;
  for (int run = 0; run < 8; ++run) {
    const int calls = run < 5 ? 1 : 3;
    for (uint64_t i = 0; i < 2; ++i, expected += calls)
      held.Push({.updates = {a}, .place = Gpu(0), .graph = {.kind = 1 + i, .params = static_cast<uint64_t>(calls)}},
                [&, calls](RunContext& ctx) {
                  for (int k = 0; k < calls; ++k) rig.Launch(ctx, "k", [&] { ++ran; });
                });
    held.Release();
    rig.eng().WaitAll();
    EXPECT_EQ(ran, expected);
  }
  EXPECT_EQ(rig.eng().device_stats().graph_instantiations, 2u);
  EXPECT_EQ(rig.eng().device_stats().graph_launches, 6u);
}

// One executable cannot overlap itself: a bulk on another lane gets one of its own instead of waiting for the first.
TEST(DeviceGraphs, BulksOfOneKeyOnTwoLanesOverlap) {
  Rig rig;
  Var a = rig.eng().NewVar("a"), b = rig.eng().NewVar("b");
  HeldOps held(rig.eng());
  const auto bulk = [&](const Var& v, uint8_t lane) {
    for (uint64_t i = 0; i < 2; ++i)
      held.Push({.updates = {v}, .place = Gpu(0, lane), .graph = {.kind = 1 + i}},
                [&](RunContext& ctx) { rig.Launch(ctx, "k"); });
    held.Release();
  };
  for (int run = 0; run < 3; ++run) {
    bulk(a, 0);
    rig.eng().WaitAll();
  }
  rig.PushHeldKernel({.updates = {a}, .place = Gpu(0, 0)});
  bulk(a, 0);
  bulk(b, 1);
  rig.eng().Wait(b);  // though the first executable is still to run
  EXPECT_FALSE(rig.eng().WaitFor(a, 0s));
  EXPECT_EQ(rig.eng().device_stats().graph_launches, 3u);
  EXPECT_EQ(rig.eng().device_stats().graph_instantiations, 2u);
}

// A handle of a library has one workspace, which is in the graph: such an executable stays on its lane.
TEST(DeviceGraphs, WhatUsesLaneLocalsIsOneLanesAlone) {
  static const char key = 0;
  for (const bool local : {false, true}) {
    Rig rig;
    Var a = rig.eng().NewVar("a");
    HeldOps held(rig.eng());
    for (int run = 0; run < 8; ++run) {
      for (uint64_t i = 0; i < 2; ++i)
        held.Push({.updates = {a}, .place = Gpu(0, run < 4 ? 0 : 1), .graph = {.kind = 1 + i}}, [&](RunContext& ctx) {
          if (local)
            (void)ctx.LaneLocal(&key, [](RunContext&) -> std::shared_ptr<void> { return std::make_shared<int>(); });
          rig.Launch(ctx, "k");
        });
      held.Release();
      rig.eng().WaitAll();
    }
    EXPECT_EQ(rig.eng().device_stats().graph_instantiations, local ? 2u : 1u);
    EXPECT_EQ(rig.eng().device_stats().graph_launches, local ? 4u : 6u) << "eager twice where it is made";
  }
}

// Two structures whose hashes are the same, made so by hand from the mixing of bulk_graphs.cc.
TEST(DeviceGraphs, KindsOfTheSameHashAreNotTakenForEachOther) {
  const auto mix = [](uint64_t hash, uint64_t word) {
    hash ^= word + 0x9e3779b97f4a7c15 + (hash << 6) + (hash >> 2);
    return hash * 0xbf58476d1ce4e5b9;
  };
  const uint64_t first = mix(0, 1), other = mix(0, 3), constant = 0x9e3779b97f4a7c15;
  const uint64_t same =
      (first ^ (2 + constant + (first << 6) + (first >> 2)) ^ other) - constant - (other << 6) - (other >> 2);
  ASSERT_EQ(mix(first, 2), mix(other, same));
  Rig rig;
  Var a = rig.eng().NewVar("a");
  HeldOps held(rig.eng());
  int sums[2] = {};
  for (int run = 0; run < 6; ++run)
    for (int which : {0, 1}) {
      for (const uint64_t kind : {which ? uint64_t{3} : uint64_t{1}, which ? same : uint64_t{2}})
        held.Push({.updates = {a}, .place = Gpu(0), .graph = {.kind = kind}},
                  [&, which](RunContext& ctx) { rig.Launch(ctx, "k", [&, which] { ++sums[which]; }); });
      held.Release();
      rig.eng().WaitAll();
    }
  EXPECT_EQ(sums[0], 12);
  EXPECT_EQ(sums[1], 12);
  EXPECT_EQ(rig.eng().device_stats().graph_launches, 4u) << "the first structure's; the other is eager";
}

// By the bytes that the device measured, the longest unused first: 256 MiB are kept.
TEST(DeviceGraphs, TheLongestUnusedGoesWhenTheyTakeTooMuch) {
  SoftwareDeviceOptions options;
  options.graph_node_bytes = size_t{50} << 20;
  Rig rig(options);
  Var a = rig.eng().NewVar("a");
  HeldOps held(rig.eng());
  const auto run = [&](uint64_t structure, int times) {
    for (int i = 0; i < times; ++i) {
      for (uint64_t k = 0; k < 2; ++k)
        held.Push({.updates = {a}, .place = Gpu(0), .graph = {.kind = 10 * structure + k}},
                  [&](RunContext& ctx) { rig.Launch(ctx, "k"); });
      held.Release();
      rig.eng().WaitAll();
    }
  };
  const auto stats = [&] { return rig.eng().device_stats(); };
  run(1, 3);
  run(2, 3);
  run(1, 1);
  EXPECT_EQ(stats().graph_launches, 3u) << "200 MiB: both are there";
  run(3, 3);
  EXPECT_EQ(stats().graph_instantiations, 3u);
  const uint64_t launches = stats().graph_launches;
  run(1, 1);
  EXPECT_EQ(stats().graph_launches, launches + 1) << "used after the second";
  run(2, 1);
  EXPECT_EQ(stats().graph_launches, launches + 1) << "gone, and eager again at first";
  run(2, 2);
  EXPECT_EQ(stats().graph_instantiations, 4u);
}

// Whatever fails on the way to a graph, the bulk runs eagerly and its key stays eager; nothing is lost. Only a node that cannot
// be updated alone has another way: the executable is updated by a capture of everything.
class GraphCallFails : public testing::TestWithParam<DeviceCall> {};

TEST_P(GraphCallFails, AtAnyTimeAndNothingIsWrong) {
  for (uint64_t nth = 1; nth <= 4; ++nth) {
    SCOPED_TRACE("failing call " + std::to_string(nth));
    Rig rig;
    Model model(rig);
    rig.device().FailCall(GetParam(), nth, DeviceCode::kCaptureInvalidated, false);
    for (int run = 0; run < 14; ++run) {
      model.Step(run / 2, GetParam() == DeviceCall::kUpdateNode || run % 2);
      model.Check(run / 2);
    }
    EXPECT_EQ(rig.eng().device_stats().retired, 14u * 4);
  }
}

TEST_P(GraphCallFails, AndTheBulkRunsEagerly) {
  Rig rig;
  Model model(rig);
  rig.device().FailCall(GetParam(), 1, DeviceCode::kCaptureInvalidated, false);
  for (int run = 0; run < 10; ++run) {
    model.Step(run, GetParam() == DeviceCall::kUpdateNode);
    model.Check(run);
  }
  const DeviceStats stats = rig.eng().device_stats();
  if (GetParam() != DeviceCall::kUpdateNode) {
    EXPECT_LT(stats.graph_launches, 8u);
  } else {
    EXPECT_EQ(stats.graph_launches, 8u);
    EXPECT_EQ(stats.graph_instantiations, 1u);
    EXPECT_EQ(stats.graph_captures, 8u) << "a node that has refused is not tried again";
  }
}

INSTANTIATE_TEST_SUITE_P(Calls, GraphCallFails,
                         testing::Values(DeviceCall::kBeginCapture, DeviceCall::kEndCapture, DeviceCall::kInstantiate,
                                         DeviceCall::kUpdate, DeviceCall::kUpdateNode, DeviceCall::kLaunchGraph),
                         [](const auto& p) { return std::string(DeviceCallName(p.param)); });

// For good: the device is lost on the way to a graph, or with one on it.
TEST_P(GraphCallFails, ForGoodAndNothingHangsOrIsLost) {
  std::optional<Model> model;  // goes after the rig: its Vars keep the device, which may still run what it was given
  Rig rig({}, 1, 1);  // one lane: else a run that is ahead makes an executable of its own, and nothing is updated
  model.emplace(rig);
  rig.device().FailCall(GetParam(), 1, DeviceCode::kDeviceFault, true);
  for (int run = 0; run < 8; ++run) model->Step(run / 4, GetParam() == DeviceCall::kUpdateNode);
  EXPECT_THROW(rig.eng().Wait(model->vars.back()), OpError);
  rig.eng().Push({.writes = {model->vars.back()}}, [] {});
  rig.eng().Wait(model->vars.back());
}

TEST(DeviceGraphs, ABodyThatAllocatesCannotBeCaptured) {
  Rig rig;
  Var a = rig.eng().NewVar("a");
  HeldOps held(rig.eng());
  int ran = 0;
  const auto body = [&](RunContext& ctx) {
    void* memory = nullptr;
    DeviceStatus s = ctx.device().Allocate(64, ctx.stream(), &memory);
    if (!s.ok()) throw DeviceError(s);
    s = ctx.device().Free(memory, ctx.stream());
    if (!s.ok()) throw DeviceError(s);
    ++ran;
  };
  for (int run = 0; run < 6; ++run) {
    held.Push({.updates = {a}, .place = Gpu(0), .graph = {.kind = 1}}, body);
    held.Push({.updates = {a}, .place = Gpu(0), .graph = {.kind = 1}}, body);
    held.Release();
    rig.eng().Wait(a);
  }
  EXPECT_EQ(ran, 12);
  EXPECT_EQ(rig.eng().device_stats().graph_launches, 0u);
  EXPECT_EQ(rig.eng().device_stats().graph_captures, 1u) << "it is not tried again";
}

}  // namespace
}  // namespace engine::test
