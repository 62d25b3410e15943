// ctx.Launch: eagerly, in graphs, and into the nodes of graphs.
#include "engine/device/launch.h"

#include "device_test.h"

namespace engine::test {
namespace {

void Put(int* to, int value) { *to = value; }
struct Pair {
  double a;
  char b;
};
void Sum(double* to, const Pair pair, short c) { *to = pair.a + pair.b + c; }

struct Launches {
  explicit Launches(Rig& r) : rig(r) {
    for (Var& v : vars) v = rig.eng().NewVar();
  }
  // Each member puts its params.
  void Step(std::array<uint64_t, 3> params, const std::function<void(RunContext&, int* to, int value)>& body) {
    HeldOps held(rig.eng());
    for (size_t i = 0; i < params.size(); ++i)
      held.Push({.name = "put",
                 .updates = vars,
                 .place = Gpu(0),
                 .graph = {.kind = 1 + i, .params = params[i], .one_call = true}},
                [this, i, value = static_cast<int>(params[i]), body](RunContext& ctx) {
                  ++bodies;
                  body(ctx, &out[i], value);
                });
    held.Release();
    rig.eng().Wait(vars[0]);
    for (size_t i = 0; i < params.size(); ++i) EXPECT_EQ(out[i], static_cast<int>(params[i]));
  }
  Rig& rig;
  std::array<Var, 1> vars;
  std::array<int, 3> out{};
  int bodies = 0;
};

TEST(DeviceLaunch, RunsTheKernelWithCopiesOfItsArguments) {
  Rig rig;
  Var x = rig.eng().NewVar("x");
  double sum = 0;
  const uint64_t hold = rig.PushHeldKernel({.updates = {x}});
  rig.eng().Push({.name = "sum", .updates = {x}, .place = Gpu(0)}, [&](RunContext& ctx) {
    Pair pair{1.5, 2};
    ctx.Launch(Sum, {2, 3}, 256, &sum, pair, 4);
    pair = {};  // it has its own
  });
  rig.device().Release(hold);
  rig.eng().Wait(x);
  EXPECT_EQ(sum, 7.5);
  EXPECT_EQ(rig.device().counts()[DeviceCall::kLaunch], 2u);
}

TEST(DeviceLaunch, IsRefusedOffDevices) {
  Rig rig;
  Var x = rig.eng().NewVar("x");
  int out = 0;
  rig.eng().Push({.name = "host", .updates = {x}}, [&](RunContext& ctx) { ctx.Launch(Put, 1, 1, &out, 1); });
  ExpectHas(FailureOf(rig.eng(), x).text, "is not placed on a device");
}

TEST(DeviceLaunch, ThatTheDeviceRefusesFailsTheOp) {
  Rig rig;
  Var x = rig.eng().NewVar("x");
  int out = 0;
  rig.device().FailCall(DeviceCall::kLaunch, 1, DeviceCode::kInvalidValue, false);
  rig.eng().Push({.name = "refused", .updates = {x}, .place = Gpu(0)},
                 [&](RunContext& ctx) { ctx.Launch(Put, 1, 1, &out, 1); });
  EXPECT_EQ(FailureOf(rig.eng(), x).op, "refused");
}

TEST(DeviceLaunch, GivesANodeItsArgumentsWithoutACapture) {
  Rig rig;
  Launches l(rig);
  const auto body = [](RunContext& ctx, int* to, int value) { ctx.Launch(Put, 1, 1, to, value); };
  for (int run = 0; run < 3; ++run) l.Step({1, 2, 3}, body);
  const DeviceCounts before = rig.device().counts();
  const int bodies = l.bodies;
  for (uint64_t run = 0; run < 10; ++run) l.Step({1, 100 + run, 3}, body);
  const DeviceCounts made = rig.device().counts() - before;
  EXPECT_EQ(made[DeviceCall::kBeginCapture] + made[DeviceCall::kInstantiate] + made[DeviceCall::kUpdate], 0u);
  EXPECT_EQ(made[DeviceCall::kUpdateNode], 10u);
  EXPECT_EQ(made[DeviceCall::kLaunchGraph], 10u);
  EXPECT_EQ(l.bodies - bodies, 10) << "once for each change";
}

// Against what its key says; it is found out all the same.
TEST(DeviceLaunch, ABodyThatDoesSomethingElseIsCaptured) {
  Rig rig;
  Launches l(rig);
  const auto launch = [](RunContext& ctx, int* to, int value) { ctx.Launch(Put, 1, 1, to, value); };
  const auto by_hand = [&](RunContext& ctx, int* to, int value) { rig.Launch(ctx, "k", [to, value] { *to = value; }); };
  const auto twice = [](RunContext& ctx, int* to, int value) {
    ctx.Launch(Put, 1, 1, to, 0);
    ctx.Launch(Put, 1, 1, to, value);
  };
  for (int run = 0; run < 3; ++run) l.Step({1, 2, 3}, launch);
  l.Step({1, 7, 3}, by_hand);
  l.Step({1, 8, 3}, launch);
  l.Step({1, 8, 9}, twice);
  l.Step({1, 8, 10}, launch);
}

TEST(DeviceLaunch, AnUpdateThatTheDeviceRefusesIsACaptureInstead) {
  Rig rig;
  Launches l(rig);
  const auto body = [](RunContext& ctx, int* to, int value) { ctx.Launch(Put, 1, 1, to, value); };
  for (int run = 0; run < 3; ++run) l.Step({1, 2, 3}, body);
  rig.device().FailCall(DeviceCall::kUpdateNode, 1, DeviceCode::kInvalidValue, false);
  for (uint64_t run = 0; run < 4; ++run) l.Step({1, 50 + run, 3}, body);
  EXPECT_EQ(rig.eng().device_stats().graph_instantiations, 1u);
}

}  // namespace
}  // namespace engine::test
