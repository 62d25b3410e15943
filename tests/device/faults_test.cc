// A device that fails, is lost or never ends: nothing hangs, no error is lost, Vars are poisoned with the cause.
#include "device_test.h"
#include "engine/device/device_memory.h"

namespace engine::test {
namespace {

// The next records fail, and the device works on. Each thread that may make one finds it so, before or after another has lost
// the device for it: the issuer, who waits, the one that retires. If one of them got its record, its op would be done.
void FailRecords(SoftwareDevice& device) {
  for (uint64_t nth = 1; nth <= 3; ++nth) device.FailCall(DeviceCall::kRecord, nth, DeviceCode::kUnknown, false);
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
  const Failure failure = FailureOf(rig.eng(), b);
  ExpectHas(failure.text, "lost");
  ExpectHas(failure.text, "'last'");
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

// Lost by an error that leaves the device working: its kernels go on, so nobody is told that their ops are over before they are.
TEST(DeviceFaults, ADeviceThatIsLostAndWorksOnIsDrainedBeforeItsOpsFail) {
  Rig rig;
  Var a = rig.eng().NewVar("a"), b = rig.eng().NewVar("b"), host = rig.eng().NewVar("host");
  const uint64_t hold = rig.PushHeldKernel({.name = "running", .writes = {a}, .place = Gpu(0, 0)});
  rig.WaitRecorded(1);
  auto buffer = std::make_shared<int>(0);
  rig.Push({.name = "behind", .updates = {a}, .place = Gpu(0, 0)}, [buffer] { ++*buffer; });
  rig.WaitRecorded(2);  // the one that fails is that behind `unrecorded`
  FailRecords(rig.device());
  rig.Push({.name = "unrecorded", .writes = {b}, .place = Gpu(0, 1)});
  EXPECT_THROW(rig.eng().Wait(b), OpError) << "its own stream is empty";
  rig.eng().Push({.reads = {a}, .writes = {host}}, [] { ADD_FAILURE() << "must be skipped"; });
  // The thread asks the stream of the running kernel; as long as it does, nothing there is over.
  const uint64_t queries = rig.device().counts()[DeviceCall::kQuery];
  while (rig.device().counts()[DeviceCall::kQuery] < queries + 4) ASSERT_FALSE(rig.eng().WaitFor(a, 0s));
  EXPECT_GT(buffer.use_count(), 1) << "the closure of a kernel that is still to run was destroyed";
  EXPECT_FALSE(rig.eng().WaitFor(host, 0s));
  rig.device().Release(hold);
  const Failure failure = FailureOf(rig.eng(), host);
  ExpectHas(failure.text, "was lost");
  ExpectHas(failure.text, "'running'");
  EXPECT_EQ(*buffer, 1) << "the kernel ran before its op failed";
  EXPECT_THROW(rig.eng().Wait(a), OpError);
  // It still answers, so it gets back what it gave.
  rig.engine.reset();
  const DeviceCounts counts = rig.device().counts();
  EXPECT_EQ(counts[DeviceCall::kCreateStream], counts[DeviceCall::kDestroyStream]);
  EXPECT_EQ(counts[DeviceCall::kCreateEvent], counts[DeviceCall::kDestroyEvent]);
}

// Whoever reads the Var may be looking at the error that it has.
TEST(DeviceFaults, ALostDeviceKeepsAnErrorThatAVarHas) {
  Rig rig;
  Var a = rig.eng().NewVar("a"), b = rig.eng().NewVar("b"), host = rig.eng().NewVar("host");
  const uint64_t hold = rig.PushHeldKernel({.name = "running", .writes = {b}, .place = Gpu(0, 0)});
  rig.eng().Push({.name = "fails", .writes = {a}, .place = Gpu(0, 0)}, [] { throw std::runtime_error("its own"); });
  rig.WaitIssued();
  rig.device().FailCall(DeviceCall::kRecord, 1, DeviceCode::kUnknown, true);
  rig.Push({.name = "unrecorded", .writes = {b}, .place = Gpu(0, 1)});
  ExpectHas(FailureOf(rig.eng(), b).text, "was lost");
  rig.eng().Push({.reads = {a}, .writes = {host}}, [] { ADD_FAILURE() << "must be skipped"; });
  ExpectHas(FailureOf(rig.eng(), host).text, "its own");
  ExpectHas(FailureOf(rig.eng(), a).text, "its own");
  rig.device().Release(hold);
}

// Another thread's capture makes a question fail, and says nothing of the kernels on the stream.
TEST(DeviceFaults, ACaptureThatIsInTheWayEndsNoOpOfALostDevice) {
  Rig rig;
  Var a = rig.eng().NewVar("a"), b = rig.eng().NewVar("b");
  const uint64_t hold = rig.PushHeldKernel({.name = "running", .writes = {a}, .place = Gpu(0, 0)});
  rig.WaitRecorded(1);
  auto buffer = std::make_shared<int>(0);
  rig.Push({.name = "behind", .updates = {a}, .place = Gpu(0, 0)}, [buffer] { ++*buffer; });
  rig.WaitRecorded(2);  // the one that fails is that behind `unrecorded`
  FailRecords(rig.device());
  rig.Push({.name = "unrecorded", .writes = {b}, .place = Gpu(0, 1)});
  EXPECT_THROW(rig.eng().Wait(b), OpError);
  for (const DeviceCode code : {DeviceCode::kCaptureUnsupported, DeviceCode::kCapturedEvent}) {
    const uint64_t queries = rig.device().counts()[DeviceCall::kQuery];
    rig.device().FailCall(DeviceCall::kQuery, 1, code, false);
    while (rig.device().counts()[DeviceCall::kQuery] < queries + 4) ASSERT_FALSE(rig.eng().WaitFor(a, 0s));
  }
  EXPECT_GT(buffer.use_count(), 1) << "the closure of a kernel that is still to run was destroyed";
  rig.device().Release(hold);
  EXPECT_THROW(rig.eng().Wait(a), OpError);
  EXPECT_EQ(*buffer, 1) << "the kernel ran before its op failed";
}

// A kernel on it that never ends is named, and does not keep the engine from ending.
TEST(DeviceFaults, ADeviceThatIsLostAndNeverDoneIsGivenUpAtShutdown) {
  std::vector<std::string> unobserved;
  auto device = MakeSoftwareDevice();
  EngineOptions options = Quiet(1);
  options.devices = {device};
  options.drain_timeout = std::chrono::milliseconds(20);
  options.on_unobserved = [&](const OpError& error) { unobserved.push_back(error.what()); };
  Engine eng(options);
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  const auto kernel = [&](RunContext& ctx) {
    if (DeviceStatus s = device->Launch(ctx.stream(), "k", std::chrono::nanoseconds(1), {}); !s.ok())
      throw DeviceError(s);
  };
  device->HangKernel(1);
  eng.Push({.name = "endless", .writes = {a}, .place = Gpu(0, 0)}, kernel);
  while (eng.device_stats().records < 1) std::this_thread::yield();
  FailRecords(*device);
  eng.Push({.name = "unrecorded", .writes = {b}, .place = Gpu(0, 1)}, kernel);
  EXPECT_THROW(eng.Wait(b), OpError);
  ExpectHas(eng.DescribePending(), "'endless'");  // what the watchdog would say
  eng.Shutdown();
  EXPECT_EQ(eng.stats().completed, eng.stats().pushed);
  ASSERT_FALSE(unobserved.empty());
  ExpectHas(unobserved.back(), "not done within drain_timeout");
  ExpectHas(unobserved.back(), "'endless'");
}

TEST(DeviceFaults, WaitAllReportsALostDeviceThatNobodySaw) {
  Rig rig;
  Var a = rig.eng().NewVar("a");
  rig.device().FailKernel(1, DeviceCode::kLaunchFailed);
  rig.Push({.writes = {a}});
  EXPECT_THROW(rig.eng().WaitAll(), OpError);
}

// The lane of an op may be made while its device is lost: whoever comes second sees the other.
TEST(DeviceFaults, AnOpWhoseLaneIsMadeWhileItsDeviceIsLostFailsWithIt) {
  Rig rig;
  Var a = rig.eng().NewVar("a"), b = rig.eng().NewVar("b");
  const auto copy = [&] {  // has an issuing thread of its own
    rig.Push({.name = "copy", .updates = {a}, .place = CopyIn(0)});
    return FailureOf(rig.eng(), a).text;
  };
  EXPECT_EQ(copy(), "");
  Gate making, lost;
  rig.device().AtCall(DeviceCall::kCreateStream, 1, [&] {
    making.Open();
    lost.Wait();
  });
  rig.Push({.name = "late", .writes = {b}, .place = Gpu(0)});
  making.Wait();
  FailRecords(rig.device());  // what was issued goes on, and so does `late`
  ExpectHas(copy(), "was lost");
  lost.Open();
  ExpectHas(FailureOf(rig.eng(), b).text, "was lost");
}

// Every call of the engine's, failing at each of its times, sticky or not: the program ends, and each Var either has its
// value or says why not.
class EachCallFails : public testing::TestWithParam<std::tuple<DeviceCall, bool>> {};

TEST_P(EachCallFails, AndNothingHangsOrIsLost) {
  const auto [call, sticky] = GetParam();
  for (uint64_t nth = 1; nth <= 12; ++nth) {
    SCOPED_TRACE("failing call " + std::to_string(nth));
    std::atomic<int> ran{0};  // outlives the device: on one that is gone, kernels may end later than their ops
    Rig rig({.memory_bytes = 24 << 10});  // the pool has to give back, or to wait
    Var a = rig.eng().NewVar("a"), b = rig.eng().NewVar("b"), c = rig.eng().NewVar("c");
    rig.device().FailCall(call, nth, DeviceCode::kUnknown, sticky);
    HeldOps held(rig.eng());
    for (int i = 0; i < 6; ++i) {
      rig.Push({.updates = {a}, .place = Gpu(0, 0)}, [&] { ++ran; });
      rig.Push({.reads = {a}, .updates = {b}, .place = Gpu(0, 1)}, [&] { ++ran; });
      held.Push({.reads = {b}, .updates = {c}, .place = Gpu(0, 2)}, [&, i](RunContext& ctx) {
        DeviceMemory memory = ctx.Allocate(size_t{512} << i), staging = ctx.AllocatePinned(512);
        const DeviceStatus copied =
            ctx.device().CopyIn(memory.data(), staging.data(), 512, ctx.stream(), MemoryKind::kPinned);
        if (!copied.ok()) throw DeviceError(copied);
        rig.Launch(ctx, "k", [&] { ++ran; });
      });
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
    if (!sticky) {  // whoever was told that an op is over may free what its kernel used
      const int told = ran;
      rig.device().RunUntilIdle();
      EXPECT_EQ(ran, told) << "kernels of ops that had failed were still to run";
    }
    rig.eng().Push({.writes = {a, b, c}}, [] {});
    rig.eng().Wait(a);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Calls, EachCallFails,
    testing::Combine(testing::Values(DeviceCall::kRecord, DeviceCall::kWait, DeviceCall::kQuery, DeviceCall::kLaunch,
                                     DeviceCall::kCreateEvent, DeviceCall::kCreateStream, DeviceCall::kAllocate,
                                     DeviceCall::kAllocatePinned, DeviceCall::kCopy, DeviceCall::kFree,
                                     DeviceCall::kSynchronize, DeviceCall::kFreePinned, DeviceCall::kDestroyEvent,
                                     DeviceCall::kDestroyStream),
                     testing::Bool()),
    [](const auto& p) {
      return std::string(DeviceCallName(std::get<0>(p.param))) + (std::get<1>(p.param) ? "Sticky" : "Once");
    });

TEST(DeviceFaults, AKernelThatNeverEndsIsNamed) {
  Rig rig;
  Var a = rig.eng().NewVar("a"), b = rig.eng().NewVar("b");
  rig.PushHeldKernel({.name = "endless", .writes = {a}});
  rig.eng().Push({.name = "host", .reads = {a}, .writes = {b}}, [] {});
  std::string text;  // until the worker has come to the host op
  const auto says = [&](const char* part) { return text.find(part) != text.npos; };
  while (!says("waits for work on a device") || !says("has not ended there")) text = rig.eng().DescribePending();
  ExpectHas(text, "endless");
}

TEST(DeviceFaults, TheWatchdogNamesAKernelThatNeverEnds) {
  auto device = MakeSoftwareDevice();
  Gate reported;
  std::string report;
  EngineOptions options = Quiet(1);
  options.devices = {device};
  options.stall_timeout = std::chrono::milliseconds(20);
  options.on_stall = [&](std::string_view text) {
    report = text;
    reported.Open();
  };
  Engine eng(options);
  Var a = eng.NewVar("a");
  const uint64_t hold = device->HangKernel(1);
  eng.Push({.name = "endless", .writes = {a}, .place = Gpu(0)}, [&](RunContext& ctx) {
    if (DeviceStatus s = device->Launch(ctx.stream(), "k", std::chrono::nanoseconds(1), {}); !s.ok())
      throw DeviceError(s);
  });
  reported.Wait();
  ExpectHas(report, "'endless'");
  ExpectHas(report, "has not ended there");
  device->Release(hold);
  eng.Wait(a);
}

// Shutdown in every state of an op: waiting, held, behind the device, issued, in a bulk, in a graph, asynchronous. It ends,
// and every op settles.
TEST(DeviceFaults, ShutdownEndsInEveryState) {
  std::vector<std::string> unobserved;
  for (const bool hangs : {false, true}) {
    SCOPED_TRACE(hangs ? "a kernel never ends" : "the device ends");
    auto device = MakeSoftwareDevice();
    EngineOptions options = Quiet(1);
    options.devices = {device};
    options.drain_timeout = std::chrono::milliseconds(hangs ? 50 : 5000);
    options.on_unobserved = [&](const OpError& error) { unobserved.push_back(error.what()); };
    auto eng = std::make_unique<Engine>(options);
    std::vector<Var> vars;
    for (int i = 0; i < 4; ++i) vars.push_back(eng->NewVar());
    const auto kernel = [&](RunContext& ctx) {
      if (DeviceStatus s = device->Launch(ctx.stream(), "k", std::chrono::nanoseconds(1), {}); !s.ok())
        throw DeviceError(s);
    };
    HeldOps bulk(*eng);
    for (int run = 0; run < 4; ++run) {
      for (uint64_t i = 0; i < 3; ++i)
        bulk.Push({.updates = {vars[1]}, .place = Gpu(0), .graph = {.kind = 1 + i}}, kernel);
      bulk.Release();
      eng->WaitAll();
    }
    EXPECT_GT(eng->device_stats().graph_launches, 0u);
    uint64_t hold = 0;
    Gate issued;
    eng->Push({.name = "held kernel", .updates = {vars[0]}, .place = Gpu(0, 1)}, [&](RunContext& ctx) {
      EXPECT_TRUE(device->LaunchHeld(ctx.stream(), "held", &hold).ok());
      issued.Open();
    });
    issued.Wait();
    eng->Push({.name = "issued", .updates = {vars[0]}, .place = Gpu(0, 1)}, kernel);
    eng->Push({.name = "another lane", .reads = {vars[0]}, .updates = {vars[2]}, .place = Gpu(0, 2)}, kernel);
    eng->Push({.name = "behind the device", .reads = {vars[0]}, .updates = {vars[3]}}, [] {});
    eng->PushAsync({.name = "asynchronous", .updates = {vars[2]}, .place = Gpu(0, 2)},
                   [&](RunContext& ctx, Completion done) {
                     kernel(ctx);
                     done();
                   });
    for (uint64_t i = 0; i < 3; ++i)
      bulk.Push({.reads = {vars[0]}, .updates = {vars[1]}, .place = Gpu(0), .graph = {.kind = 1 + i}}, kernel);
    // `bulk` is open: its members are held.
    if (!hangs) device->Release(hold);
    eng->Shutdown();
    EXPECT_EQ(eng->stats().completed, eng->stats().pushed);
  }
  // The device that never ended was lost, and somebody was told what had been on it.
  ASSERT_FALSE(unobserved.empty());
  ExpectHas(unobserved[0], "shut down");
  ExpectHas(unobserved[0], "'held kernel'");
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

}  // namespace
}  // namespace engine::test
