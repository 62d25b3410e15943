// What only a software device can do: count, fail on purpose, hang, and name the mistake.
#include <atomic>
#include <thread>

#include "conformance.h"
#include "support/gate.h"

namespace engine::test {
namespace {

using Clock = SoftwareDeviceOptions::Clock;

class Software : public testing::TestWithParam<Clock> {
 protected:
  void SetUp() override {
    device_ = MakeSoftwareDevice({.clock = GetParam(), .seed = 3, .memory_bytes = 1 << 20});
    EXPECT_OK(device_->CreateStream(0, &stream_));
    EXPECT_OK(device_->CreateStream(0, &other_));
    EXPECT_OK(device_->CreateEvent(&event_));
  }
  std::shared_ptr<SoftwareDevice> device_;
  Stream stream_, other_;
  Event event_;
};
INSTANTIATE_TEST_SUITE_P(All, Software, testing::Values(Clock::kThreads, Clock::kVirtual),
                         [](const auto& p) { return p.param == Clock::kThreads ? "threads" : "virtual"; });

TEST_P(Software, CountsEveryCallExactly) {
  const DeviceCounts before = device_->counts();
  for (int i = 0; i < 15; ++i) EXPECT_OK(device_->Launch(stream_, "kernel", {}, {}));
  EXPECT_OK(device_->Record(event_, stream_));
  EXPECT_OK(device_->Wait(other_, event_));
  EXPECT_OK(device_->Synchronize(other_));
  EXPECT_OK(device_->Query(event_));
  void *memory = nullptr, *again = nullptr;
  EXPECT_OK(device_->Allocate(1000, stream_, &memory));
  int word = 0;
  EXPECT_OK(device_->CopyIn(memory, &word, 4, stream_));
  EXPECT_OK(device_->Free(memory, stream_));
  EXPECT_OK(device_->Allocate(600, stream_, &again));  // of the same size class: no driver call
  const DeviceCounts made = device_->counts() - before;
  EXPECT_EQ(made[DeviceCall::kLaunch], 15u);
  EXPECT_EQ(made[DeviceCall::kRecord], 1u);
  EXPECT_EQ(made[DeviceCall::kWait], 1u);
  EXPECT_EQ(made[DeviceCall::kSynchronize], 1u);
  EXPECT_EQ(made[DeviceCall::kQuery], 1u);
  EXPECT_EQ(made[DeviceCall::kCopy], 1u);
  EXPECT_EQ(made[DeviceCall::kPageableCopy], 1u);
  EXPECT_EQ(made[DeviceCall::kAllocate], 2u);
  EXPECT_EQ(made[DeviceCall::kDriverAllocate], 1u);
  EXPECT_EQ(made[DeviceCall::kCreateEvent], 0u);
  EXPECT_EQ(made[DeviceCall::kRecordPending], 0u);
}

TEST_P(Software, CountsRecordsOfAnEventThatIsStillWanted) {
  uint64_t hold = 0;
  EXPECT_OK(device_->LaunchHeld(stream_, "held", &hold));
  EXPECT_OK(device_->Record(event_, stream_));
  EXPECT_OK(device_->Record(event_, other_));
  EXPECT_EQ(device_->counts()[DeviceCall::kRecordPending], 1u);
  device_->Release(hold);
}

TEST_P(Software, FailsTheNthCallOfAKindOnce) {
  device_->FailCall(DeviceCall::kRecord, 2, DeviceCode::kUnknown, false);
  EXPECT_OK(device_->Record(event_, stream_));
  EXPECT_CODE(kUnknown, device_->Record(event_, stream_));
  EXPECT_CODE(kUnknown, device_->TakeLastError());
  EXPECT_OK(device_->TakeLastError());
  EXPECT_OK(device_->Record(event_, stream_));
}

TEST_P(Software, AFailedCallHasDoneNothing) {
  std::atomic<int> ran = 0;
  device_->FailCall(DeviceCall::kLaunch, 1, DeviceCode::kOutOfMemory, false);
  EXPECT_CODE(kOutOfMemory, device_->Launch(stream_, "kernel", {}, [&] { ++ran; }));
  EXPECT_OK(device_->Synchronize(stream_));
  EXPECT_EQ(ran, 0);
}

TEST_P(Software, EveryCallFailsWhenItIsTold) {
  const auto call = [&](DeviceCall kind) -> DeviceStatus {
    void* memory = nullptr;
    int word = 0;
    DeviceGraph graph;
    DeviceGraphExec exec;
    switch (kind) {
      case DeviceCall::kLaunch: return device_->Launch(stream_, "kernel", {}, {});
      case DeviceCall::kRecord: return device_->Record(event_, stream_);
      case DeviceCall::kWait: return device_->Wait(stream_, event_);
      case DeviceCall::kQuery: return device_->Query(event_);
      case DeviceCall::kSynchronize: return device_->Synchronize(stream_);
      case DeviceCall::kCopy: return device_->CopyOut(&word, nullptr, 0, stream_);
      case DeviceCall::kCreateStream: return device_->CreateStream(0, &other_);
      case DeviceCall::kDestroyStream: return device_->DestroyStream(other_);
      case DeviceCall::kCreateEvent: return device_->CreateEvent(&event_);
      case DeviceCall::kDestroyEvent: return device_->DestroyEvent(event_);
      case DeviceCall::kAllocate:
      case DeviceCall::kDriverAllocate: return device_->Allocate(64, stream_, &memory);
      case DeviceCall::kFree: return device_->Free(nullptr, stream_);
      case DeviceCall::kAllocatePinned: return device_->AllocatePinned(64, &memory);
      case DeviceCall::kFreePinned: return device_->FreePinned(nullptr);
      case DeviceCall::kBeginCapture: return device_->BeginCapture(stream_);
      case DeviceCall::kEndCapture: return device_->EndCapture(stream_, &graph);
      case DeviceCall::kInstantiate: return device_->Instantiate(graph, &exec, nullptr);
      case DeviceCall::kUpdate: return device_->Update(exec, graph);
      case DeviceCall::kUpdateNode: return device_->UpdateNode(exec, {}, DeviceGraphNode{});
      case DeviceCall::kLaunchGraph: return device_->Launch(exec, stream_);
      case DeviceCall::kElapsed: {
        std::chrono::nanoseconds took{};
        return device_->Elapsed(event_, event_, &took);
      }
      case DeviceCall::kPageableCopy:   // needs a buffer: CountsEveryCallExactly
      case DeviceCall::kRecordPending:  // not a call
      case DeviceCall::kCount: break;
    }
    return DeviceStatus::Fail(DeviceCode::kDeviceFault, false, 0, "no such call");
  };
  for (size_t i = 0; i < static_cast<size_t>(DeviceCall::kCount); ++i) {
    const auto kind = static_cast<DeviceCall>(i);
    if (kind == DeviceCall::kPageableCopy || kind == DeviceCall::kRecordPending) continue;
    SCOPED_TRACE(DeviceCallName(kind));
    device_->FailCall(kind, 1, DeviceCode::kDeviceFault, false);
    const DeviceStatus status = call(kind);
    EXPECT_EQ(status.code(), DeviceCode::kDeviceFault);
    EXPECT_NE(status.text().find(DeviceCallName(kind)), std::string::npos) << status.text();
  }
}

TEST_P(Software, AStickyErrorIsReturnedByEverythingAfterIt) {
  device_->FailCall(DeviceCall::kLaunch, 1, DeviceCode::kIllegalAddress, true);
  EXPECT_TRUE(device_->Launch(stream_, "kernel", {}, {}).sticky());
  EXPECT_EQ(device_->Record(event_, stream_).code(), DeviceCode::kIllegalAddress);
  EXPECT_EQ(device_->Query(event_).code(), DeviceCode::kIllegalAddress);
  EXPECT_EQ(device_->Synchronize(stream_).code(), DeviceCode::kIllegalAddress);
  EXPECT_TRUE(device_->TakeLastError().sticky());
  EXPECT_TRUE(device_->TakeLastError().sticky());
}

TEST_P(Software, AKernelThatFailsWhileItRunsLosesTheDeviceAndIsNamed) {
  std::atomic<bool> later = false;
  EXPECT_OK(device_->Launch(stream_, "good", {}, {}));
  EXPECT_OK(device_->Launch(stream_, "bad", {}, [] { throw std::runtime_error("out of bounds"); }));
  DeviceStatus status = device_->Launch(stream_, "later", {}, [&] { later = true; });
  EXPECT_TRUE(status.ok() || status.sticky());
  status = device_->Synchronize(stream_);
  EXPECT_EQ(status.code(), DeviceCode::kLaunchFailed);
  EXPECT_TRUE(status.sticky());
  EXPECT_NE(status.text().find("kernel 'bad' failed: out of bounds"), std::string::npos) << status.text();
  EXPECT_FALSE(later);
}

TEST_P(Software, TheNthKernelFailsOnRequest) {
  device_->FailKernel(2, DeviceCode::kIllegalAddress);
  EXPECT_OK(device_->Launch(stream_, "first", {}, {}));
  EXPECT_OK(device_->Synchronize(stream_));
  EXPECT_OK(device_->Launch(stream_, "second", {}, {}));
  const DeviceStatus status = device_->Synchronize(stream_);
  EXPECT_EQ(status.code(), DeviceCode::kIllegalAddress);
  EXPECT_NE(status.text().find("'second'"), std::string::npos) << status.text();
}

TEST_P(Software, AKernelThatNeverEndsKeepsItsEventPendingAndNotTheDevice) {
  const uint64_t hang = device_->HangKernel(2);
  EXPECT_OK(device_->Launch(stream_, "first", {}, {}));
  EXPECT_OK(device_->Synchronize(stream_));
  EXPECT_OK(device_->Launch(stream_, "second", {}, {}));
  EXPECT_OK(device_->Record(event_, stream_));
  device_->Advance(std::chrono::hours(1));
  EXPECT_EQ(device_->Query(event_).code(), DeviceCode::kNotReady);
  EXPECT_OK(device_->Synchronize(other_));
  device_->Release(hang);
  EXPECT_OK(device_->Synchronize(stream_));
}

TEST_P(Software, IsDestroyedWithAKernelThatNeverEnds) {
  device_->HangKernel(1);
  EXPECT_OK(device_->Launch(stream_, "endless", {}, {}));
  EXPECT_OK(device_->Record(event_, stream_));
  EXPECT_OK(device_->Wait(other_, event_));
  EXPECT_OK(device_->Launch(other_, "behind it", {}, [] { FAIL() << "must not run"; }));
  device_.reset();
}

TEST_P(Software, AHostThatBlocksIsWokenByTheLoss) {
  uint64_t hold = 0;
  EXPECT_OK(device_->LaunchHeld(stream_, "held", &hold));
  std::thread host([&] { EXPECT_EQ(device_->Synchronize(stream_).code(), DeviceCode::kDeviceFault); });
  device_->FailCall(DeviceCall::kRecord, 1, DeviceCode::kDeviceFault, true);
  EXPECT_TRUE(device_->Record(event_, other_).sticky());
  host.join();
}

TEST_P(Software, AHostThatBlocksIsWokenByARelease) {
  uint64_t hold = 0;
  EXPECT_OK(device_->LaunchHeld(stream_, "held", &hold));
  std::thread host([&] { EXPECT_OK(device_->Synchronize(stream_)); });
  device_->Release(hold);
  host.join();
}

TEST_P(Software, StaleHandlesAreNoticed) {
  EXPECT_OK(device_->DestroyEvent(event_));
  EXPECT_CODE(kInvalidHandle, device_->Record(event_, stream_));
  EXPECT_CODE(kInvalidHandle, device_->DestroyEvent(event_));
  EXPECT_OK(device_->DestroyStream(other_));
  EXPECT_CODE(kInvalidHandle, device_->Launch(other_, "kernel", {}, {}));
  Event fresh;
  EXPECT_OK(device_->CreateEvent(&fresh));
  EXPECT_NE(fresh, event_);  // though it took the old one's place
  EXPECT_CODE(kInvalidHandle, device_->Synchronize(Stream{fresh.raw}));
}

TEST_P(Software, AKernelThatCallsTheDeviceFailsInsteadOfBlocking) {
  EXPECT_OK(device_->Launch(stream_, "caller", {}, [this] { (void)device_->Query(event_); }));
  const DeviceStatus status = device_->Synchronize(stream_);
  EXPECT_EQ(status.code(), DeviceCode::kUnsupported);
  EXPECT_NE(status.text().find("'caller'"), std::string::npos) << status.text();
}

TEST_P(Software, DeclaredUsesAreChecked) {
  int host = 0;
  EXPECT_CODE(kWrongMemory, device_->Launch(stream_, {"kernel", {}, {}, {{&host, sizeof host, true}}}));
  void* memory = nullptr;
  EXPECT_OK(device_->Allocate(256, stream_, &memory));
  EXPECT_CODE(kWrongMemory, device_->Launch(stream_, {"kernel", {}, {}, {{memory, 257, false}}}));
  EXPECT_OK(device_->Free(memory, stream_));
  EXPECT_CODE(kInvalidValue, device_->Free(memory, stream_));
  EXPECT_CODE(kWrongMemory, device_->Launch(stream_, {"kernel", {}, {}, {{memory, 4, false}}}));
}

// On CUDA the same, but which calls are meant is not written down: hence only here.
TEST_P(Software, AThreadThatCapturesMayLookAtNothingButEvents) {
  DeviceGraph graph;
  void* memory = nullptr;
  const std::function<DeviceStatus()> looks[] = {
      [&] { return device_->Query(other_); }, [&] { return device_->Synchronize(event_); },
      [&] { return device_->Synchronize(other_); }, [&] { return device_->AllocatePinned(8, &memory); }};
  for (const auto& look : looks) {
    EXPECT_OK(device_->BeginCapture(stream_));
    EXPECT_CODE(kCaptureUnsupported, look());
    EXPECT_CODE(kCaptureInvalidated, device_->EndCapture(stream_, &graph));
  }
}

TEST_P(Software, KernelsOfManyThreadsAllRun) {
  std::atomic<int> ran = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Stream mine;
      Event event;
      EXPECT_OK(device_->CreateStream(0, &mine));
      EXPECT_OK(device_->CreateEvent(&event));
      for (int i = 0; i < 500; ++i) {
        EXPECT_OK(device_->Launch(mine, "kernel", {}, [&] { ++ran; }));
        EXPECT_OK(device_->Record(event, mine));
        EXPECT_OK(device_->Wait(t % 2 ? stream_ : other_, event));
        if (i % 50 == 0) EXPECT_OK(device_->Synchronize(event));
      }
      EXPECT_OK(device_->Synchronize(mine));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ran, 2000);
  EXPECT_OK(device_->Synchronize(stream_));
  EXPECT_OK(device_->Synchronize(other_));
}

}  // namespace
}  // namespace engine::test
