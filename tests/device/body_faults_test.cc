// What the body of an op can do wrong on a device: its op fails and is named, and the lane goes on.
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
  const Failure failure = FailureOf(rig.eng(), b);
  EXPECT_EQ(failure.op, "bad");
  ExpectHas(failure.text, "planted");
  rig.Push({.writes = {a}});
  rig.eng().Wait(a);
}

// What it had launched by then is behind its point, like any op's work.
TEST(DeviceFaults, WhatABodyLaunchedBeforeItThrewIsWaitedFor) {
  Rig rig;
  Var a = rig.eng().NewVar("a");
  uint64_t hold = 0;
  Gate launched;
  rig.eng().Push({.name = "bad", .writes = {a}, .place = Gpu(0)}, [&](RunContext& ctx) {
    ASSERT_TRUE(rig.device().LaunchHeld(ctx.stream(), "half", &hold).ok());
    launched.Open();
    throw std::runtime_error("planted");
  });
  launched.Wait();
  std::atomic<bool> ran{false};
  rig.eng().Push({.writes = {a}}, [&] { ran = true; });
  EXPECT_FALSE(rig.eng().WaitFor(a, 0s));
  while (rig.eng().device_stats().host_waits == 0) std::this_thread::yield();
  EXPECT_FALSE(ran) << "the kernel still writes what the host overwrites";
  rig.device().Release(hold);
  rig.eng().Wait(a);
  EXPECT_TRUE(ran);
  EXPECT_THROW(rig.eng().WaitAll(), OpError) << "nobody has seen it yet";
}

// A completion that is lost fails its op; the device's order is as if it had been called.
TEST(DeviceFaults, ALostCompletionFailsItsOpAndTheLaneGoesOn) {
  Rig rig;
  Var a = rig.eng().NewVar("a"), b = rig.eng().NewVar("b");
  rig.eng().PushAsync({.name = "forgetful", .writes = {a}, .place = Gpu(0)},
                      [&](RunContext& ctx, Completion) { rig.Launch(ctx, "k"); });
  rig.Push({.name = "next", .updates = {b}});
  rig.eng().Wait(b);
  EXPECT_EQ(FailureOf(rig.eng(), a).op, "forgetful");
}

TEST(DeviceFaults, HostPointersWhereDevicePointersBelongAreNamed) {
  Rig rig;
  Var a = rig.eng().NewVar("a");
  std::array<int, 4> host{}, other{};
  rig.eng().Push({.name = "wrong", .writes = {a}, .place = CopyIn(0)}, [&](RunContext& ctx) {
    if (DeviceStatus s = ctx.device().CopyIn(host.data(), other.data(), sizeof host, ctx.stream()); !s.ok())
      throw DeviceError(s);
  });
  const Failure failure = FailureOf(rig.eng(), a);
  EXPECT_EQ(failure.op, "wrong");
  ExpectHas(failure.text, "kWrongMemory");
}

// In a bulk that would be once a member.
TEST(DeviceFaults, ABodyThatSynchronizesIsNamed) {
  Rig rig;
  Var a = rig.eng().NewVar("a");
  HeldOps bulk(rig.eng());
  for (const char* name : {"good", "impatient"})
    bulk.Push({.name = Name::Intern(name), .updates = {a}, .place = Gpu(0)}, [&, name](RunContext& ctx) {
      rig.Launch(ctx, "k");
      if (name[0] != 'i') return;
      if (DeviceStatus s = ctx.device().Synchronize(ctx.stream()); !s.ok()) throw DeviceError(s);
    });
  bulk.Release();
  const Failure failure = FailureOf(rig.eng(), a);
  EXPECT_EQ(failure.op, "impatient");
  for (const char* part : {"kSyncInBody", "Synchronize", "'impatient'", "the bulk that began with op 'good'"})
    ExpectHas(failure.text, part);
  Stream own;
  ASSERT_TRUE(rig.device().CreateStream(0, &own).ok());
  EXPECT_TRUE(rig.device().Synchronize(own).ok()) << "outside of ops it is allowed";
}

// A library that sets itself up, as cublasCreate, is no fault of the op that needs it first.
TEST(DeviceFaults, WhatALaneKeepsMayBlockWhileItIsMade) {
  Rig rig;
  Var a = rig.eng().NewVar("a");
  rig.eng().Push({.name = "first", .writes = {a}, .place = Gpu(0)}, [&](RunContext& ctx) {
    static const char key = 0;
    (void)ctx.LaneLocal(&key, [](RunContext& c) -> std::shared_ptr<void> {
      if (DeviceStatus s = c.device().Synchronize(c.stream()); !s.ok()) throw DeviceError(s);
      return std::make_shared<int>(1);
    });
    rig.Launch(ctx, "k");
  });
  EXPECT_EQ(FailureOf(rig.eng(), a).text, "");
}

// Also where nothing could refuse it (on CUDA: a direct call, which CUPTI tells of), and where the refusal was ignored.
TEST(DeviceFaults, ABodyThatBlocksAndSaysNothingIsNamed) {
  Rig rig;
  const auto failure = [&](const char* name, auto&& body) {
    Var a = rig.eng().NewVar("a");
    rig.eng().Push({.name = Name::Intern(name), .writes = {a}, .place = Gpu(0)}, [&](RunContext& ctx) {
      rig.Launch(ctx, "k");
      body(ctx);
    });
    return FailureOf(rig.eng(), a).text;
  };
  const std::string direct = failure("direct", [&](RunContext&) { rig.device().RunUntilIdle(); });
  ExpectHas(direct, "RunUntilIdle in the body of op 'direct'");
  EXPECT_EQ(direct.find("bulk"), std::string::npos) << direct;
  const std::string deaf = failure("deaf", [&](RunContext& ctx) { (void)ctx.device().Synchronize(ctx.stream()); });
  ExpectHas(deaf, "Synchronize in the body of op 'deaf'");
  EXPECT_EQ(failure("good", [](RunContext&) {}), "");
  rig.device().RunUntilIdle();  // outside of bodies nobody minds
}

TEST(DeviceFaults, AStreamThatIsNoneOfTheDevicesIsNamed) {
  Rig rig({}, 1, 2, 2);
  Stream others;
  ASSERT_TRUE(rig.device(1).CreateStream(0, &others).ok());
  for (const Stream wrong : {Stream{}, others}) {
    Var a = rig.eng().NewVar("a");
    rig.eng().Push({.name = "astray", .writes = {a}, .place = Gpu(0)}, [&](RunContext&) {
      if (DeviceStatus s = rig.device(0).Launch(wrong, "k", std::chrono::nanoseconds(1), {}); !s.ok())
        throw DeviceError(s);
    });
    const Failure failure = FailureOf(rig.eng(), a);
    EXPECT_EQ(failure.op, "astray");
    ExpectHas(failure.text, wrong ? "of another device" : "stream 0 is not allowed");
  }
}

// An op is over when its stream is: what its body puts elsewhere has to be joined to that.
TEST(DeviceFaults, WorkOnAnotherStreamThanTheOpsIsNamedUnlessItIsJoined) {
  Rig rig({}, 1, 2, 2);
  SoftwareDevice& device = rig.device();
  Stream side, third, of_a_lane, of_another_device;
  Event event;
  ASSERT_TRUE(device.CreateStream(0, &side).ok() && device.CreateStream(0, &third).ok());
  ASSERT_TRUE(device.CreateEvent(&event).ok() && rig.device(1).CreateStream(0, &of_another_device).ok());
  const auto good = [](const DeviceStatus& s) {
    if (!s.ok()) throw DeviceError(s);
  };
  const auto launch = [&](Stream on) { good(device.Launch(on, "stray", std::chrono::nanoseconds(1), {})); };
  const auto joins = [&](Stream later, Stream earlier) {
    good(device.Record(event, earlier));
    good(device.Wait(later, event));
  };
  const auto text = [&](auto&& body) {
    const Var a = rig.eng().NewVar();
    rig.eng().Push({.name = "op", .writes = {a}, .place = Gpu(0, 0)}, body);
    return FailureOf(rig.eng(), a).text;
  };
  const Var a = rig.eng().NewVar();
  rig.eng().Push({.writes = {a}, .place = Gpu(0, 1)}, [&](RunContext& ctx) { of_a_lane = ctx.stream(); });
  rig.eng().Wait(a);
  const std::vector<std::function<void(RunContext&)>> wrong{
      [&](RunContext&) { launch(side); },
      [&](RunContext&) { launch(of_a_lane); },
      [&](RunContext&) { good(rig.device(1).Launch(of_another_device, "stray", std::chrono::nanoseconds(1), {})); },
      [&](RunContext& ctx) {  // in front of the work
        joins(ctx.stream(), side);
        launch(side);
      },
      [&](RunContext&) {
        launch(side);
        joins(third, side);
      },
      [&](RunContext& ctx) {  // one of two
        launch(side);
        launch(third);
        joins(ctx.stream(), third);
      }};
  for (const auto& body : wrong) {
    const std::string said = text(body);
    ExpectHas(said, "kWrongStream: 'stray' in the body of op 'op' pushed at ");
    ExpectHas(said, "Use ctx.stream()");
  }
  EXPECT_EQ(text([&](RunContext& ctx) {
              joins(side, ctx.stream());
              launch(side);
              launch(third);
              launch(side);
              joins(third, side);
              joins(ctx.stream(), third);
            }),
            "");
  rig.eng().PushAsync({.updates = {a}, .place = Gpu(0, 0)}, [&](RunContext&, Completion done) {
    launch(side);
    done();
  });
  EXPECT_EQ(FailureOf(rig.eng(), a).text, "") << "its Completion says when it is over";
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

}  // namespace
}  // namespace engine::test
