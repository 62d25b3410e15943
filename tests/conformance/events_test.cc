// Streams and events: what CUDA's documentation says of them, on every backend.
#include "conformance.h"

namespace engine::test {
namespace {

class Events : public DeviceTest {};
INSTANTIATE_TEST_SUITE_P(All, Events, testing::ValuesIn(Backends()), [](const auto& p) { return p.param.name; });

TEST_P(Events, WorkOfOneStreamRunsInOrder) {
  const Stream stream = NewStream();
  int32_t* y = NewBuffer();
  int32_t* x = NewBuffer(3);
  for (int i = 1; i <= 50; ++i) {
    EXPECT_OK(under_test_->Set(stream, y, kCount, i));
    EXPECT_OK(under_test_->Axpy(stream, y, x, 2, kCount));
  }
  EXPECT_EQ(Value(y), 56);
}

TEST_P(Events, AnUnrecordedEventIsReadyAndNobodyWaitsForIt) {
  const Stream stream = NewStream();
  const Event event = NewEvent();
  EXPECT_OK(device_->Query(event));
  EXPECT_OK(device_->Synchronize(event));
  int32_t* buffer = NewBuffer();
  EXPECT_OK(device_->Wait(stream, event));
  EXPECT_OK(under_test_->Set(stream, buffer, kCount, 4));
  EXPECT_EQ(Value(buffer), 4);
}

TEST_P(Events, QuerySaysNotReadyUntilTheWorkBeforeTheRecordHasEnded) {
  const Stream stream = NewStream();
  const Event event = NewEvent();
  const uint64_t hold = Hold(stream);
  EXPECT_OK(device_->Record(event, stream));
  const DeviceStatus pending = device_->Query(event);
  EXPECT_EQ(pending.code(), DeviceCode::kNotReady);
  EXPECT_FALSE(pending.failed());
  EXPECT_OK(device_->TakeLastError());  // NotReady is no error
  Release(hold);
  EXPECT_OK(device_->Synchronize(event));
  EXPECT_OK(device_->Query(event));
}

TEST_P(Events, QueryOfAStreamSaysNotReadyUntilAllOnItHasEnded) {
  const Stream stream = NewStream(), other = NewStream();
  EXPECT_OK(device_->Query(stream));
  const uint64_t hold = Hold(stream);
  const DeviceStatus pending = device_->Query(stream);
  EXPECT_EQ(pending.code(), DeviceCode::kNotReady);
  EXPECT_FALSE(pending.failed());
  EXPECT_OK(device_->Query(other));
  EXPECT_OK(device_->TakeLastError());  // NotReady is no error
  Release(hold);
  EXPECT_OK(device_->Synchronize(stream));
  EXPECT_OK(device_->Query(stream));
  EXPECT_CODE(kInvalidHandle, device_->Query(Stream{}));
}

TEST_P(Events, TimedEventsTellWhatLiesBetweenThem) {
  const Stream stream = NewStream();
  Event before, behind;
  EXPECT_OK(device_->CreateTimedEvent(&before));
  EXPECT_OK(device_->CreateTimedEvent(&behind));
  const Event untimed = NewEvent();
  std::chrono::nanoseconds took{};
  EXPECT_CODE(kInvalidHandle, device_->Elapsed(before, behind, &took));  // never recorded
  EXPECT_OK(device_->Record(before, stream));
  const uint64_t hold = Hold(stream);
  EXPECT_OK(under_test_->Spin(stream, std::chrono::microseconds(200)));
  EXPECT_OK(device_->Record(behind, stream));
  EXPECT_OK(device_->Record(untimed, stream));
  EXPECT_EQ(device_->Elapsed(before, behind, &took).code(), DeviceCode::kNotReady);
  Release(hold);
  EXPECT_OK(device_->Synchronize(stream));
  EXPECT_OK(device_->Elapsed(before, behind, &took));
  EXPECT_GT(took.count(), 0);
  EXPECT_CODE(kInvalidHandle, device_->Elapsed(before, untimed, &took));
  (void)device_->TakeLastError();
  EXPECT_OK(device_->DestroyEvent(before));
  EXPECT_OK(device_->DestroyEvent(behind));
}

TEST_P(Events, PollingComesToAnEnd) {
  const Stream stream = NewStream();
  const Event event = NewEvent();
  EXPECT_OK(under_test_->Spin(stream, std::chrono::microseconds(100)));
  EXPECT_OK(device_->Record(event, stream));
  DeviceStatus status = device_->Query(event);
  while (status.code() == DeviceCode::kNotReady) status = device_->Query(event);
  EXPECT_OK(status);
}

TEST_P(Events, AWaitOrdersTwoStreams) {
  const Stream first = NewStream(), second = NewStream();
  const Event event = NewEvent();
  int32_t* x = NewBuffer();
  int32_t* y = NewBuffer(1);
  const uint64_t hold = Hold(first);
  EXPECT_OK(under_test_->Set(first, x, kCount, 7));
  EXPECT_OK(device_->Record(event, first));
  EXPECT_OK(device_->Wait(second, event));
  EXPECT_OK(under_test_->Axpy(second, y, x, 1, kCount));
  Release(hold);
  EXPECT_OK(device_->Synchronize(second));
  EXPECT_EQ(Value(y), 8);
}

TEST_P(Events, AStreamIsNotHeldUpByAnotherWithoutAWait) {
  const Stream held = NewStream(), free = NewStream();
  int32_t* buffer = NewBuffer();
  const Event event = NewEvent();
  const uint64_t hold = Hold(held);
  EXPECT_OK(device_->Record(event, held));
  EXPECT_OK(under_test_->Set(free, buffer, kCount, 5));
  EXPECT_OK(device_->Synchronize(free));
  EXPECT_EQ(device_->Query(event).code(), DeviceCode::kNotReady);
  Release(hold);
}

TEST_P(Events, AWaitSeesTheRecordThatWasMadeBeforeIt) {
  const Stream held = NewStream(), other = NewStream();
  const Event event = NewEvent();
  EXPECT_OK(device_->Record(event, other));
  EXPECT_OK(device_->Wait(other, event));
  const uint64_t hold = Hold(held);
  EXPECT_OK(device_->Record(event, held));  // again: those who waited before do not see it
  EXPECT_OK(device_->Synchronize(other));
  EXPECT_EQ(device_->Query(event).code(), DeviceCode::kNotReady);
  Release(hold);
  EXPECT_OK(device_->Synchronize(event));
}

TEST_P(Events, ARecordOverwritesTheOneBeforeForLaterWaits) {
  const Stream held = NewStream(), other = NewStream(), waiter = NewStream();
  const Event event = NewEvent();
  const uint64_t hold = Hold(held);
  EXPECT_OK(device_->Record(event, held));
  EXPECT_OK(device_->Record(event, other));  // the held work is no longer what the event stands for
  EXPECT_OK(device_->Wait(waiter, event));
  EXPECT_OK(device_->Synchronize(waiter));
  EXPECT_OK(device_->Synchronize(event));
  Release(hold);
}

TEST_P(Events, AnEarlierWaitKeepsTheEarlierRecord) {
  const Stream held = NewStream(), waiter = NewStream(), other = NewStream();
  const Event event = NewEvent(), end = NewEvent();
  const uint64_t hold = Hold(held);
  EXPECT_OK(device_->Record(event, held));
  EXPECT_OK(device_->Wait(waiter, event));
  EXPECT_OK(device_->Record(event, other));
  EXPECT_OK(device_->Record(end, waiter));
  EXPECT_EQ(device_->Query(end).code(), DeviceCode::kNotReady);
  Release(hold);
  EXPECT_OK(device_->Synchronize(end));
}

TEST_P(Events, DestroyedWithWorkPendingTheWorkStillHappens) {
  const Stream stream = NewStream();
  int32_t* buffer = NewBuffer();
  Stream gone;
  Event event;
  EXPECT_OK(device_->CreateStream(0, &gone));
  EXPECT_OK(device_->CreateEvent(&event));
  const uint64_t hold = Hold(gone);
  EXPECT_OK(under_test_->Set(gone, buffer, kCount, 9));
  EXPECT_OK(device_->Record(event, gone));
  EXPECT_OK(device_->Wait(stream, event));
  EXPECT_OK(device_->DestroyEvent(event));
  EXPECT_OK(device_->DestroyStream(gone));
  Release(hold);
  EXPECT_OK(device_->Synchronize(stream));
  EXPECT_EQ(Value(buffer), 9);
}

TEST_P(Events, StreamZeroAndNullEventsAreRefused) {
  const Stream stream = NewStream();
  const Event event = NewEvent();
  int32_t word = 0;
  EXPECT_CODE(kInvalidHandle, device_->Record(event, Stream{}));
  EXPECT_CODE(kInvalidHandle, device_->Record(Event{}, stream));
  EXPECT_CODE(kInvalidHandle, device_->Wait(Stream{}, event));
  EXPECT_CODE(kInvalidHandle, device_->Wait(stream, Event{}));
  EXPECT_CODE(kInvalidHandle, device_->Query(Event{}));
  EXPECT_CODE(kInvalidHandle, device_->Synchronize(Event{}));
  EXPECT_CODE(kInvalidHandle, device_->Synchronize(Stream{}));
  EXPECT_CODE(kInvalidHandle, device_->CopyOut(&word, NewBuffer(), 4, Stream{}));
  EXPECT_CODE(kInvalidHandle, device_->BeginCapture(Stream{}));
  EXPECT_OK(device_->Synchronize(stream));  // none of it has done any harm
}

TEST_P(Events, APriorityOutOfRangeIsRefused) {
  NewStream();
  Stream stream;
  EXPECT_CODE(kInvalidValue, device_->CreateStream(device_->info().least_priority + 1, &stream));
  EXPECT_FALSE(stream);
  EXPECT_CODE(kInvalidValue, device_->CreateStream(device_->info().greatest_priority - 1, &stream));
}

}  // namespace
}  // namespace engine::test
