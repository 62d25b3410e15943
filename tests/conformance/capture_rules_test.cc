// What a capture refuses, and that the device goes on well afterwards.
#include <thread>

#include "conformance.h"

namespace engine::test {
namespace {

class CaptureRules : public DeviceTest {
 protected:
  // A spoilt capture ends without a graph, and the stream works again.
  void ExpectSpoilt(Stream stream) {
    DeviceGraph graph;
    EXPECT_CODE(kCaptureInvalidated, device_->EndCapture(stream, &graph));
    EXPECT_FALSE(graph);
    ExpectWorks(stream);
  }
  void ExpectWorks(Stream stream) {
    bool capturing = true;
    EXPECT_OK(device_->IsCapturing(stream, &capturing));
    EXPECT_FALSE(capturing);
    int32_t* buffer = NewBuffer();
    EXPECT_OK(under_test_->Set(stream, buffer, kCount, 1));
    EXPECT_OK(device_->Synchronize(stream));
    EXPECT_EQ(Value(buffer), 1);
  }
};
INSTANTIATE_TEST_SUITE_P(All, CaptureRules, testing::ValuesIn(Backends()), [](const auto& p) { return p.param.name; });

TEST_P(CaptureRules, AnEventRecordedInACaptureMayNotBeQueried) {
  const Stream stream = NewStream();
  const Event event = NewEvent();
  EXPECT_OK(device_->BeginCapture(stream));
  EXPECT_OK(device_->Record(event, stream));
  EXPECT_CODE(kCapturedEvent, device_->Query(event));
  ExpectSpoilt(stream);
}

TEST_P(CaptureRules, NorSynchronized) {
  const Stream stream = NewStream();
  const Event event = NewEvent();
  EXPECT_OK(device_->BeginCapture(stream));
  EXPECT_OK(device_->Record(event, stream));
  EXPECT_CODE(kCapturedEvent, device_->Synchronize(event));
  ExpectSpoilt(stream);
}

TEST_P(CaptureRules, ACapturingStreamMayNotBeSynchronized) {
  const Stream stream = NewStream();
  EXPECT_OK(device_->BeginCapture(stream));
  EXPECT_CODE(kCaptureUnsupported, device_->Synchronize(stream));
  ExpectSpoilt(stream);
}

TEST_P(CaptureRules, ASpoiltCaptureRefusesMoreWork) {
  const Stream stream = NewStream();
  const Event event = NewEvent();
  EXPECT_OK(device_->BeginCapture(stream));
  EXPECT_CODE(kCaptureUnsupported, device_->Synchronize(stream));
  EXPECT_CODE(kCaptureInvalidated, device_->Record(event, stream));
  ExpectSpoilt(stream);
}

TEST_P(CaptureRules, AWaitForAnEventOutsideIsRefused) {
  const Stream stream = NewStream(), outside = NewStream();
  const Event event = NewEvent();
  EXPECT_OK(device_->Record(event, outside));
  EXPECT_OK(device_->BeginCapture(stream));
  EXPECT_CODE(kCaptureIsolation, device_->Wait(stream, event));
  ExpectSpoilt(stream);
}

TEST_P(CaptureRules, TwoCapturesMayNotBeMerged) {
  const Stream first = NewStream(), second = NewStream();
  const Event event = NewEvent();
  EXPECT_OK(device_->BeginCapture(first));
  EXPECT_OK(device_->BeginCapture(second));
  EXPECT_OK(device_->Record(event, first));
  EXPECT_CODE(kCaptureMerge, device_->Wait(second, event));
  DeviceGraph graph;
  EXPECT_TRUE(device_->EndCapture(second, &graph).failed());
  EXPECT_TRUE(device_->EndCapture(first, &graph).failed());
  ExpectWorks(first);
  ExpectWorks(second);
}

TEST_P(CaptureRules, WorkThatDidNotJoinIsRefused) {
  const Stream first = NewStream(), second = NewStream();
  const Event fork = NewEvent();
  int32_t* buffer = NewBuffer();
  EXPECT_OK(device_->BeginCapture(first));
  EXPECT_OK(device_->Record(fork, first));
  EXPECT_OK(device_->Wait(second, fork));
  EXPECT_OK(under_test_->Set(second, buffer, kCount, 1));
  DeviceGraph graph;
  EXPECT_CODE(kCaptureUnjoined, device_->EndCapture(first, &graph));
  EXPECT_FALSE(graph);
  ExpectWorks(first);
  ExpectWorks(second);
}

TEST_P(CaptureRules, OnlyTheThreadThatBeganItEndsIt) {
  const Stream stream = NewStream();
  EXPECT_OK(device_->BeginCapture(stream));
  std::thread([&] {
    DeviceGraph graph;
    EXPECT_CODE(kCaptureWrongThread, device_->EndCapture(stream, &graph));
    EXPECT_FALSE(graph);
  }).join();
  DeviceGraph graph;
  if (device_->EndCapture(stream, &graph).ok()) {
    EXPECT_OK(device_->DestroyGraph(graph));
  }
  ExpectWorks(stream);
}

TEST_P(CaptureRules, OnlyTheStreamThatBeganItEndsIt) {
  const Stream first = NewStream(), second = NewStream();
  const Event fork = NewEvent();
  EXPECT_OK(device_->BeginCapture(first));
  EXPECT_OK(device_->Record(fork, first));
  EXPECT_OK(device_->Wait(second, fork));
  DeviceGraph graph;
  EXPECT_CODE(kCaptureUnmatched, device_->EndCapture(second, &graph));
  EXPECT_TRUE(device_->EndCapture(first, &graph).failed());
  ExpectWorks(first);
}

TEST_P(CaptureRules, BeginTwiceAndEndWithoutBeginAreRefused) {
  const Stream stream = NewStream();
  DeviceGraph graph;
  EXPECT_TRUE(device_->EndCapture(stream, &graph).failed());
  EXPECT_FALSE(graph);
  EXPECT_OK(device_->BeginCapture(stream));
  EXPECT_TRUE(device_->BeginCapture(stream).failed());
  if (device_->EndCapture(stream, &graph).ok()) {
    EXPECT_OK(device_->DestroyGraph(graph));
  }
  ExpectWorks(stream);
}

TEST_P(CaptureRules, PageableCopiesAndAllocationsAreRefusedAndSpoilNothing) {
  const Stream stream = NewStream();
  int32_t* buffer = NewBuffer(3);
  int32_t word = 0;
  void* memory = nullptr;
  EXPECT_OK(device_->BeginCapture(stream));
  EXPECT_CODE(kCaptureMode, device_->CopyOut(&word, buffer, 4, stream));
  EXPECT_CODE(kCaptureMode, device_->Allocate(64, stream, &memory));
  EXPECT_CODE(kCaptureMode, device_->Free(buffer, stream));
  DeviceGraph graph;
  EXPECT_OK(device_->EndCapture(stream, &graph));
  EXPECT_OK(device_->DestroyGraph(graph));
  EXPECT_EQ(Value(buffer), 3);
}

// A wait for something else looks at its event wherever it is called.
TEST_P(CaptureRules, AThreadThatCapturesMayQueryAnEventFromOutside) {
  const Stream stream = NewStream(), other = NewStream();
  const Event event = NewEvent();
  EXPECT_OK(device_->Record(event, other));
  EXPECT_OK(device_->Synchronize(event));
  EXPECT_OK(device_->BeginCapture(stream));
  EXPECT_OK(device_->Query(event));
  DeviceGraph graph;
  EXPECT_OK(device_->EndCapture(stream, &graph));
  EXPECT_OK(device_->DestroyGraph(graph));
}

// The reason for thread-local mode: in global mode each of these would fail, and spoil the capture of another thread.
TEST_P(CaptureRules, OtherThreadsGoOnMeanwhile) {
  const Stream stream = NewStream(), other = NewStream();
  const Event event = NewEvent();
  int32_t* buffer = NewBuffer();
  EXPECT_OK(device_->BeginCapture(stream));
  EXPECT_OK(under_test_->Set(stream, buffer, kCount, 4));
  std::thread([&] {
    void *memory = nullptr, *pinned = nullptr;
    EXPECT_OK(device_->Allocate(kBytes, other, &memory));
    EXPECT_OK(under_test_->Set(other, static_cast<int32_t*>(memory), kCount, 2));
    EXPECT_OK(device_->Record(event, other));
    EXPECT_OK(device_->Synchronize(event));
    EXPECT_OK(device_->Query(event));
    EXPECT_OK(device_->AllocatePinned(64, &pinned));
    EXPECT_OK(device_->FreePinned(pinned));
    EXPECT_OK(device_->Free(memory, other));
    EXPECT_OK(device_->Synchronize(other));
  }).join();
  DeviceGraph graph;
  EXPECT_OK(device_->EndCapture(stream, &graph));
  EXPECT_EQ(Value(buffer), 0);  // noted, not run
  EXPECT_OK(device_->DestroyGraph(graph));
}

TEST_P(CaptureRules, AnEventOfACaptureIsGoodAgainOnceItIsRecordedOutside) {
  const Stream stream = NewStream();
  const Event event = NewEvent();
  const DeviceGraph graph = Captured(stream, [&] { EXPECT_OK(device_->Record(event, stream)); });
  EXPECT_OK(device_->DestroyGraph(graph));
  EXPECT_OK(device_->Record(event, stream));
  EXPECT_OK(device_->Synchronize(event));
}

}  // namespace
}  // namespace engine::test
