// Copies: what is asynchronous, what blocks, and which memory belongs where.
#include "conformance.h"

namespace engine::test {
namespace {

class Copies : public DeviceTest {};
INSTANTIATE_TEST_SUITE_P(All, Copies, testing::ValuesIn(Backends()), [](const auto& p) { return p.param.name; });

TEST_P(Copies, GoThereAndBack) {
  const Stream stream = NewStream();
  int32_t* from = NewPinned(6);
  int32_t* to = NewPinned();
  int32_t* a = NewBuffer();
  int32_t* b = NewBuffer();
  EXPECT_OK(device_->CopyIn(a, from, kBytes, stream));
  EXPECT_OK(device_->CopyWithin(b, a, kBytes, stream));
  EXPECT_OK(device_->CopyOut(to, b, kBytes, stream, MemoryKind::kPinned));
  EXPECT_OK(device_->Synchronize(stream));
  EXPECT_EQ(to[0], 6);
  EXPECT_EQ(to[kCount - 1], 6);
}

TEST_P(Copies, OfPinnedMemoryDoNotBlockAndReadItWhenTheyRun) {
  const Stream stream = NewStream();
  int32_t* host = NewPinned(1);
  int32_t* result = NewPinned(0);
  int32_t* buffer = NewBuffer();
  const uint64_t hold = Hold(stream);
  EXPECT_OK(device_->CopyIn(buffer, host, kBytes, stream));
  EXPECT_OK(device_->CopyOut(result, buffer, kBytes, stream));
  EXPECT_EQ(result[0], 0);
  std::fill_n(host, kCount, 2);  // legal as nothing has read it yet
  Release(hold);
  EXPECT_OK(device_->Synchronize(stream));
  EXPECT_EQ(result[kCount - 1], 2);
}

TEST_P(Copies, OfPageableMemoryAreOverWhenTheyReturn) {
  const Stream stream = NewStream();
  std::vector<int32_t> host(kCount, 3);
  int32_t* buffer = NewBuffer();
  EXPECT_OK(under_test_->Spin(stream, std::chrono::microseconds(50)));
  EXPECT_OK(device_->CopyIn(buffer, host.data(), kBytes, stream));
  host.assign(kCount, 8);
  EXPECT_OK(device_->CopyOut(host.data(), buffer, kBytes, stream));
  EXPECT_EQ(host[kCount - 1], 3);
}

TEST_P(Copies, OfNothingAreFine) {
  const Stream stream = NewStream();
  EXPECT_OK(device_->CopyIn(nullptr, nullptr, 0, stream, MemoryKind::kPinned));
  EXPECT_OK(device_->Synchronize(stream));
}

TEST_P(Copies, MemoryOfTheWrongSideIsRefused) {
  const Stream stream = NewStream();
  int32_t* host = NewPinned(1);
  int32_t* buffer = NewBuffer(4);
  std::vector<int32_t> pageable(kCount);
  EXPECT_CODE(kWrongMemory, device_->CopyIn(host, host, kBytes, stream));
  EXPECT_CODE(kWrongMemory, device_->CopyIn(buffer, buffer, kBytes, stream));
  EXPECT_CODE(kWrongMemory, device_->CopyOut(buffer, buffer, kBytes, stream));
  EXPECT_CODE(kWrongMemory, device_->CopyOut(host, pageable.data(), kBytes, stream));
  EXPECT_CODE(kWrongMemory, device_->CopyWithin(buffer, host, kBytes, stream));
  EXPECT_CODE(kWrongMemory, device_->CopyWithin(host, buffer, kBytes, stream));
  EXPECT_CODE(kWrongMemory, device_->CopyOut(pageable.data(), buffer, kBytes, stream, MemoryKind::kPinned));
  EXPECT_EQ(Value(buffer), 4);
}

TEST_P(Copies, TheDeviceKnowsWhoseMemoryAPointerIs) {
  NewStream();
  int32_t on_stack = 0;
  MemoryKind kind = MemoryKind::kUnknown;
  EXPECT_OK(device_->KindOf(NewBuffer() + 5, &kind));
  EXPECT_EQ(kind, MemoryKind::kDevice);
  EXPECT_OK(device_->KindOf(NewPinned() + 5, &kind));
  EXPECT_EQ(kind, MemoryKind::kPinned);
  EXPECT_OK(device_->KindOf(&on_stack, &kind));
  EXPECT_EQ(kind, MemoryKind::kPageable);
}

}  // namespace
}  // namespace engine::test
