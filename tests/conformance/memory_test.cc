// Stream-ordered memory.
#include "conformance.h"

namespace engine::test {
namespace {

class Memory : public DeviceTest {};
INSTANTIATE_TEST_SUITE_P(All, Memory, testing::ValuesIn(Backends()), [](const auto& p) { return p.param.name; });

TEST_P(Memory, IsFreedBehindTheWorkOfTheStream) {
  const Stream stream = NewStream(), other = NewStream();
  int32_t* result = NewBuffer();
  const uint64_t hold = Hold(stream);
  void* memory = nullptr;
  EXPECT_OK(device_->Allocate(kBytes, stream, &memory));
  auto* buffer = static_cast<int32_t*>(memory);
  EXPECT_OK(under_test_->Set(stream, buffer, kCount, 5));
  EXPECT_OK(under_test_->Axpy(stream, result, buffer, 1, kCount));
  EXPECT_OK(device_->Free(buffer, stream));
  // Another stream must not get that memory while the first one has yet to use it.
  void* taken = nullptr;
  EXPECT_OK(device_->Allocate(kBytes, other, &taken));
  EXPECT_OK(under_test_->Set(other, static_cast<int32_t*>(taken), kCount, 100));
  EXPECT_OK(device_->Synchronize(other));
  Release(hold);
  EXPECT_OK(device_->Synchronize(stream));
  EXPECT_EQ(Value(result), 5);
  EXPECT_OK(device_->Free(taken, other));
}

TEST_P(Memory, OfItsOwnIsUsedAgainByAStreamWithoutWaiting) {
  const Stream stream = NewStream();
  const uint64_t hold = Hold(stream);
  void *first = nullptr, *second = nullptr;
  EXPECT_OK(device_->Allocate(1 << 20, stream, &first));
  EXPECT_OK(device_->Free(first, stream));
  EXPECT_OK(device_->Allocate(1 << 20, stream, &second));
  EXPECT_EQ(first, second);
  EXPECT_OK(device_->Free(second, stream));
  Release(hold);
}

TEST_P(Memory, NothingIsNull) {
  const Stream stream = NewStream();
  void* memory = &memory;
  EXPECT_OK(device_->Allocate(0, stream, &memory));
  EXPECT_EQ(memory, nullptr);
  EXPECT_OK(device_->Free(nullptr, stream));
}

TEST_P(Memory, RunningOutIsNoEndOfTheDevice) {
  const Stream stream = NewStream();
  void* memory = nullptr;
  EXPECT_CODE(kOutOfMemory, device_->Allocate(size_t{1} << 46, stream, &memory));
  EXPECT_EQ(memory, nullptr);
  int32_t* buffer = NewBuffer(2);
  EXPECT_EQ(Value(buffer), 2);
}

TEST_P(Memory, ATrimmedPoolGivesAgain) {
  const Stream stream = NewStream();
  void* memory = nullptr;
  EXPECT_OK(device_->Allocate(1 << 20, stream, &memory));
  EXPECT_OK(device_->Free(memory, stream));
  EXPECT_OK(device_->Synchronize(stream));
  EXPECT_OK(device_->TrimPool(0));
  EXPECT_EQ(Value(NewBuffer(6)), 6);
}

}  // namespace
}  // namespace engine::test
