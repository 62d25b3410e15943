// What every test of the suite uses: the backends, streams and events that clean up after themselves, and buffers.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "device_under_test.h"

namespace engine::test {

#define EXPECT_OK(call)                                                             \
  do {                                                                              \
    const ::engine::DeviceStatus expect_ok_status = (call);                         \
    EXPECT_TRUE(expect_ok_status.ok()) << #call << ": " << expect_ok_status.text(); \
  } while (0)
#define EXPECT_CODE(wanted, call)                                                            \
  do {                                                                                       \
    const ::engine::DeviceStatus expect_code_status = (call);                                \
    EXPECT_STREQ(::engine::DeviceCodeName(::engine::DeviceCode::wanted),                     \
                 ::engine::DeviceCodeName(expect_code_status.code()))                        \
        << #call << ": " << expect_code_status.text();                                       \
    EXPECT_FALSE(expect_code_status.sticky()) << #call << ": " << expect_code_status.text(); \
  } while (0)

std::vector<Backend> Backends();

class DeviceTest : public testing::TestWithParam<Backend> {
 protected:
  static constexpr int kCount = 1000;
  static constexpr size_t kBytes = kCount * sizeof(int32_t);

  void SetUp() override {
    std::string why;
    under_test_ = GetParam().make(&why);
    if (!under_test_) GTEST_SKIP() << why;
    device_ = &under_test_->device();
  }
  void TearDown() override {
    if (!device_) return;
    for (uint64_t hold : holds_) under_test_->Release(hold);
    for (Stream stream : streams_) EXPECT_OK(device_->Synchronize(stream));
    for (int32_t* memory : buffers_) EXPECT_OK(device_->Free(memory, streams_.front()));
    for (int32_t* memory : pinned_) EXPECT_OK(device_->FreePinned(memory));
    for (Event event : events_) EXPECT_OK(device_->DestroyEvent(event));
    for (Stream stream : streams_) EXPECT_OK(device_->DestroyStream(stream));
  }

  Stream NewStream() {
    Stream stream;
    EXPECT_OK(device_->CreateStream(0, &stream));
    streams_.push_back(stream);
    return stream;
  }
  Event NewEvent() {
    Event event;
    EXPECT_OK(device_->CreateEvent(&event));
    events_.push_back(event);
    return event;
  }
  // Filled with `value`, and ready.
  int32_t* NewBuffer(int32_t value = 0) {
    Stream stream = streams_.empty() ? NewStream() : streams_.front();
    void* memory = nullptr;
    EXPECT_OK(device_->Allocate(kBytes, stream, &memory));
    buffers_.push_back(static_cast<int32_t*>(memory));
    EXPECT_OK(under_test_->Set(stream, buffers_.back(), kCount, value));
    EXPECT_OK(device_->Synchronize(stream));
    return buffers_.back();
  }
  int32_t* NewPinned(int32_t value = 0) {
    void* memory = nullptr;
    EXPECT_OK(device_->AllocatePinned(kBytes, &memory));
    pinned_.push_back(static_cast<int32_t*>(memory));
    std::fill_n(pinned_.back(), kCount, value);
    return pinned_.back();
  }
  uint64_t Hold(Stream stream) {
    uint64_t hold = 0;
    EXPECT_OK(under_test_->Hold(stream, &hold));
    holds_.push_back(hold);
    return hold;
  }
  void Release(uint64_t hold) { under_test_->Release(hold); }
  // What all of a buffer holds; -1 if not all is the same. Through pageable memory, so it is over when it returns.
  int32_t Value(const int32_t* buffer) {
    std::vector<int32_t> host(kCount, -2);
    EXPECT_OK(device_->CopyOut(host.data(), buffer, kBytes, streams_.front(), MemoryKind::kPageable));
    for (int32_t value : host) {
      if (value != host[0]) return -1;
    }
    return host[0];
  }
  // Captures one call on `stream`.
  DeviceGraph Captured(Stream stream, const std::function<void()>& calls) {
    DeviceGraph graph;
    EXPECT_OK(device_->BeginCapture(stream));
    calls();
    EXPECT_OK(device_->EndCapture(stream, &graph));
    return graph;
  }

  std::unique_ptr<DeviceUnderTest> under_test_;
  Device* device_ = nullptr;

 private:
  std::vector<Stream> streams_;
  std::vector<Event> events_;
  std::vector<int32_t*> buffers_, pinned_;
  std::vector<uint64_t> holds_;
};

}  // namespace engine::test
