// What can go wrong on a device: nothing hangs, no error is lost, Vars are poisoned with the cause.
#include <sys/wait.h>

#include "device_test.h"

namespace engine::test {
namespace {

TEST(DeviceFaults, ABodyThatThrowsPoisonsItsVarsAndStillHasItsPlace) {
  Rig rig;
  Var a = rig.eng().NewVar("a"), b = rig.eng().NewVar("b");
  rig.eng().Push({.name = "bad", .writes = {a}, .place = Gpu(0)}, [&](RunContext& ctx) {
    rig.Launch(ctx, "half");
    throw std::runtime_error("planted");
  });
  rig.Push({.name = "after", .reads = {a}, .writes = {b}}, [] { ADD_FAILURE() << "must be skipped"; });
  try {
    rig.eng().Wait(b);
    FAIL() << "the error was lost";
  } catch (const OpError& e) {
    EXPECT_EQ(e.op(), "bad");
    EXPECT_NE(std::string(e.what()).find("planted"), std::string::npos);
  }
  rig.Push({.writes = {a}});
  rig.eng().Wait(a);
}

TEST(DeviceFaults, AKernelThatFailsLosesTheDeviceAndNamesTheOps) {
  Rig rig;
  Var a = rig.eng().NewVar("a"), b = rig.eng().NewVar("b"), good = rig.eng().NewVar("good");
  rig.Push({.name = "fine", .writes = {good}});
  rig.eng().Wait(good);
  rig.eng().WaitAll();
  const uint64_t hold = rig.PushHeldKernel({.name = "first", .writes = {a}});
  rig.device().FailKernel(1, DeviceCode::kIllegalAddress);
  rig.Push({.name = "middle", .updates = {a}});
  rig.Push({.name = "last", .reads = {a}, .writes = {b}});
  rig.WaitIssued();
  rig.device().Release(hold);
  try {
    rig.eng().Wait(b);
    FAIL() << "the error was lost";
  } catch (const OpError& e) {
    const std::string what = e.what();
    EXPECT_NE(what.find("lost"), std::string::npos) << what;
    EXPECT_NE(what.find("'last'"), std::string::npos) << what;
  }
  EXPECT_THROW(rig.eng().Wait(a), OpError);
  EXPECT_NO_THROW(rig.eng().Wait(good)) << "it had retired";
  rig.eng().WaitAll();  // the error was seen
  // No further call is made; ops fail with the same error, host ops go on.
  const uint64_t launches = rig.device().counts()[DeviceCall::kLaunch];
  Var c = rig.eng().NewVar("c");
  rig.Push({.name = "late", .writes = {c}});
  EXPECT_THROW(rig.eng().Wait(c), OpError);
  EXPECT_EQ(rig.device().counts()[DeviceCall::kLaunch], launches);
  rig.eng().Push({.writes = {a, b, c}}, [] {});
  rig.eng().Wait(a);
  rig.eng().Wait(b);
  rig.eng().Wait(c);
}

TEST(DeviceFaults, WaitAllReportsALostDeviceThatNobodySaw) {
  Rig rig;
  Var a = rig.eng().NewVar("a");
  rig.device().FailKernel(1, DeviceCode::kLaunchFailed);
  rig.Push({.writes = {a}});
  EXPECT_THROW(rig.eng().WaitAll(), OpError);
}

// Every call of the engine's, failing at each of its times, sticky or not: the program ends, and each Var either has its
// value or says why not.
class EachCallFails : public testing::TestWithParam<std::tuple<DeviceCall, bool>> {};

TEST_P(EachCallFails, AndNothingHangsOrIsLost) {
  const auto [call, sticky] = GetParam();
  for (uint64_t nth = 1; nth <= 12; ++nth) {
    SCOPED_TRACE("failing call " + std::to_string(nth));
    Rig rig;
    Var a = rig.eng().NewVar("a"), b = rig.eng().NewVar("b"), c = rig.eng().NewVar("c");
    rig.device().FailCall(call, nth, DeviceCode::kUnknown, sticky);
    std::atomic<int> ran{0};
    HeldOps held(rig.eng());
    for (int i = 0; i < 6; ++i) {
      rig.Push({.updates = {a}, .place = Gpu(0, 0)}, [&] { ++ran; });
      rig.Push({.reads = {a}, .updates = {b}, .place = Gpu(0, 1)}, [&] { ++ran; });
      held.Push({.reads = {b}, .updates = {c}, .place = Gpu(0, 2)},
                [&](RunContext& ctx) { rig.Launch(ctx, "k", [&] { ++ran; }); });
      if (i % 3 == 2) held.Release();
    }
    held.Release();
    int errors = 0;
    for (Var* v : {&a, &b, &c}) {
      try {
        rig.eng().Wait(*v);
      } catch (const OpError&) {
        ++errors;
      }
    }
    while (true) {
      try {
        rig.eng().WaitAll();
        break;
      } catch (const OpError&) {
        ++errors;
      }
    }
    EXPECT_TRUE(errors > 0 || ran == 18) << ran << " kernels ran and nobody said why not all";
    rig.eng().Push({.writes = {a, b, c}}, [] {});
    rig.eng().Wait(a);
  }
}

INSTANTIATE_TEST_SUITE_P(Calls, EachCallFails,
                         testing::Combine(testing::Values(DeviceCall::kRecord, DeviceCall::kWait, DeviceCall::kQuery,
                                                          DeviceCall::kLaunch, DeviceCall::kCreateEvent,
                                                          DeviceCall::kCreateStream),
                                          testing::Bool()),
                         [](const auto& p) {
                           return std::string(DeviceCallName(std::get<0>(p.param))) +
                                  (std::get<1>(p.param) ? "Sticky" : "Once");
                         });

TEST(DeviceFaults, AKernelThatNeverEndsIsNamed) {
  Rig rig;
  Var a = rig.eng().NewVar("a"), b = rig.eng().NewVar("b");
  rig.PushHeldKernel({.name = "endless", .writes = {a}});
  rig.eng().Push({.name = "host", .reads = {a}, .writes = {b}}, [] {});
  std::string text;  // until the worker has come to the host op
  const auto says = [&](const char* part) { return text.find(part) != text.npos; };
  while (!says("waits for work on a device") || !says("has not ended there")) text = rig.eng().DescribePending();
  EXPECT_NE(text.find("endless"), std::string::npos) << text;
}

TEST(DeviceFaults, ShutdownWithWorkOnTheDeviceDrains) {
  Rig rig;
  std::atomic<int> ran{0};
  {
    Var a = rig.eng().NewVar("a");
    for (int i = 0; i < 100; ++i) rig.Push({.updates = {a}}, [&] { ++ran; });
  }
  rig.eng().Shutdown();
  EXPECT_EQ(ran, 100);
}

TEST(DeviceFaults, CancelledOpsAreNotIssued) {
  Rig rig;
  Var a = rig.eng().NewVar("a"), b = rig.eng().NewVar("b");
  CancelScope scope;
  HeldOp gate = rig.eng().PushHeld({.writes = {b}}, [] {});
  rig.Push({.reads = {b}, .writes = {a}, .cancel = &scope}, [] { ADD_FAILURE() << "must be skipped"; });
  scope.Cancel();
  gate.Release();
  EXPECT_THROW(rig.eng().Wait(a), OpError);
  EXPECT_EQ(rig.eng().device_stats().issued, 0u);
}

TEST(DeviceFaults, DevicesAreLostInAForksChild) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's threads do not survive a fork";
  Rig rig;
  Var a = rig.eng().NewVar("a"), b = rig.eng().NewVar("b");
  rig.Push({.writes = {b}});
  rig.eng().WaitAll();
  const uint64_t hold = rig.PushHeldKernel({.writes = {a}});
  const pid_t child = fork();
  if (child == 0) {
    int status = 0;
    try {
      rig.eng().Wait(a);
      status |= 1;
    } catch (const OpError&) {
    }
    try {
      rig.Push({.writes = {a}});
      status |= 2;
    } catch (const UsageError&) {
    }
    try {
      rig.eng().Wait(b);
      rig.eng().Push({.writes = {a}}, [] {});
      rig.eng().Wait(a);
    } catch (...) {
      status |= 4;
    }
    _exit(status);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  rig.device().Release(hold);
  rig.eng().Wait(a);
}

}  // namespace
}  // namespace engine::test
