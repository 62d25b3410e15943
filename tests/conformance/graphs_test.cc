// Graphs: what was captured runs when it is launched, and can be changed in between.
#include "conformance.h"

namespace engine::test {
namespace {

class Graphs : public DeviceTest {
 protected:
  DeviceGraphExec Instantiate(DeviceGraph graph) {
    DeviceGraphExec exec;
    EXPECT_OK(device_->Instantiate(graph, &exec, nullptr));
    return exec;
  }
};
INSTANTIATE_TEST_SUITE_P(All, Graphs, testing::ValuesIn(Backends()), [](const auto& p) { return p.param.name; });

TEST_P(Graphs, RunWhenTheyAreLaunchedAndAsOftenAsThat) {
  const Stream stream = NewStream();
  int32_t* x = NewBuffer(2);
  int32_t* y = NewBuffer();
  const DeviceGraph graph = Captured(stream, [&] {
    for (int i = 0; i < 10; ++i) EXPECT_OK(under_test_->Axpy(stream, y, x, 1, kCount));
  });
  EXPECT_EQ(Value(y), 0);
  size_t bytes = 0;
  DeviceGraphExec exec;
  EXPECT_OK(device_->Instantiate(graph, &exec, &bytes));
  EXPECT_GT(bytes, 0u) << "by it the engine knows how many it may keep";
  EXPECT_OK(device_->DestroyGraph(graph));
  for (int i = 0; i < 3; ++i) EXPECT_OK(device_->Launch(exec, stream));
  EXPECT_OK(device_->Synchronize(stream));
  EXPECT_EQ(Value(y), 60);
  EXPECT_OK(device_->DestroyGraphExec(exec));
}

TEST_P(Graphs, AKernelsNodeTakesAnotherLaunch) {
  const Stream stream = NewStream();
  int32_t* x = NewBuffer(2);
  int32_t* y = NewBuffer();
  const auto launch = [&](int32_t a) {
    under_test_->WithAxpy([&](const KernelLaunch& l) { EXPECT_OK(device_->LaunchKernel(l, stream)); }, y, x, a, kCount);
  };
  launch(5);
  EXPECT_EQ(Value(y), 10);
  DeviceGraphNode node;
  const DeviceGraph graph = Captured(stream, [&] {
    launch(1);
    EXPECT_OK(device_->LastNode(stream, &node));
    launch(10);
  });
  const DeviceGraphExec exec = Instantiate(graph);
  EXPECT_OK(device_->Launch(exec, stream));
  EXPECT_EQ(Value(y), 32);
  under_test_->WithAxpy([&](const KernelLaunch& l) { EXPECT_OK(device_->UpdateNode(exec, node, l)); }, y, x, 100,
                        kCount);
  EXPECT_OK(device_->Launch(exec, stream));
  EXPECT_EQ(Value(y), 252);
  EXPECT_OK(device_->DestroyGraphExec(exec));
  EXPECT_OK(device_->DestroyGraph(graph));
}

TEST_P(Graphs, AreInOrderWithTheStream) {
  const Stream stream = NewStream();
  int32_t* x = NewBuffer(1);
  int32_t* y = NewBuffer();
  const DeviceGraph graph = Captured(stream, [&] { EXPECT_OK(under_test_->Axpy(stream, y, x, 1, kCount)); });
  const DeviceGraphExec exec = Instantiate(graph);
  EXPECT_OK(under_test_->Set(stream, y, kCount, 10));
  EXPECT_OK(device_->Launch(exec, stream));
  EXPECT_OK(under_test_->Axpy(stream, y, y, 1, kCount));
  EXPECT_EQ(Value(y), 22);
  EXPECT_OK(device_->DestroyGraphExec(exec));
  EXPECT_OK(device_->DestroyGraph(graph));
}

TEST_P(Graphs, ForkAndJoinByEvents) {
  const Stream first = NewStream(), second = NewStream();
  const Event fork = NewEvent(), join = NewEvent();
  int32_t* a = NewBuffer();
  int32_t* b = NewBuffer();
  const DeviceGraph graph = Captured(first, [&] {
    EXPECT_OK(under_test_->Set(first, a, kCount, 3));
    EXPECT_OK(device_->Record(fork, first));
    EXPECT_OK(device_->Wait(second, fork));
    EXPECT_OK(under_test_->Set(second, b, kCount, 4));
    EXPECT_OK(under_test_->Axpy(second, b, a, 1, kCount));
    EXPECT_OK(device_->Record(join, second));
    EXPECT_OK(device_->Wait(first, join));
    EXPECT_OK(under_test_->Axpy(first, a, b, 1, kCount));
  });
  const DeviceGraphExec exec = Instantiate(graph);
  for (int i = 0; i < 5; ++i) {
    EXPECT_OK(device_->Launch(exec, second));  // any stream
    EXPECT_OK(device_->Synchronize(second));
    EXPECT_EQ(Value(a), 10);
    EXPECT_EQ(Value(b), 7);
  }
  EXPECT_OK(device_->DestroyGraphExec(exec));
  EXPECT_OK(device_->DestroyGraph(graph));
}

TEST_P(Graphs, OneExecutableDoesNotOverlapItself) {
  const Stream first = NewStream(), second = NewStream();
  const Event event = NewEvent();
  int32_t* x = NewBuffer(1);
  int32_t* y = NewBuffer();
  const DeviceGraph graph = Captured(first, [&] { EXPECT_OK(under_test_->Axpy(first, y, x, 1, kCount)); });
  const DeviceGraphExec exec = Instantiate(graph);
  const uint64_t hold = Hold(first);
  EXPECT_OK(device_->Launch(exec, first));
  EXPECT_OK(device_->Launch(exec, second));
  EXPECT_OK(device_->Record(event, second));
  EXPECT_EQ(device_->Query(event).code(), DeviceCode::kNotReady);
  Release(hold);
  EXPECT_OK(device_->Synchronize(event));
  EXPECT_EQ(Value(y), 2);
  EXPECT_OK(device_->DestroyGraphExec(exec));
  EXPECT_OK(device_->DestroyGraph(graph));
}

TEST_P(Graphs, UpdateGivesAllParametersAndLeavesEarlierLaunchesAlone) {
  const Stream stream = NewStream();
  int32_t* a = NewBuffer();
  int32_t* b = NewBuffer();
  const DeviceGraph one = Captured(stream, [&] { EXPECT_OK(under_test_->Set(stream, a, kCount, 1)); });
  const DeviceGraph two = Captured(stream, [&] { EXPECT_OK(under_test_->Set(stream, b, kCount, 2)); });
  const DeviceGraphExec exec = Instantiate(one);
  const uint64_t hold = Hold(stream);
  EXPECT_OK(device_->Launch(exec, stream));
  EXPECT_OK(device_->Update(exec, two));
  EXPECT_OK(device_->Launch(exec, stream));
  Release(hold);
  EXPECT_OK(device_->Synchronize(stream));
  EXPECT_EQ(Value(a), 1);
  EXPECT_EQ(Value(b), 2);
  EXPECT_OK(device_->DestroyGraphExec(exec));
  EXPECT_OK(device_->DestroyGraph(one));
  EXPECT_OK(device_->DestroyGraph(two));
}

TEST_P(Graphs, UpdateSaysWhenTheStructureDiffersAndChangesNothing) {
  const Stream stream = NewStream();
  int32_t* a = NewBuffer();
  const DeviceGraph one = Captured(stream, [&] { EXPECT_OK(under_test_->Set(stream, a, kCount, 1)); });
  const DeviceGraph two = Captured(stream, [&] {
    EXPECT_OK(under_test_->Set(stream, a, kCount, 2));
    EXPECT_OK(under_test_->Set(stream, a, kCount, 3));
  });
  const DeviceGraphExec exec = Instantiate(one);
  EXPECT_CODE(kGraphUpdateFailed, device_->Update(exec, two));
  EXPECT_OK(device_->Launch(exec, stream));
  EXPECT_OK(device_->Synchronize(stream));
  EXPECT_EQ(Value(a), 1);
  EXPECT_OK(device_->DestroyGraphExec(exec));
  EXPECT_OK(device_->DestroyGraph(one));
  EXPECT_OK(device_->DestroyGraph(two));
}

TEST_P(Graphs, OneNodeTakesItsParametersFromANodeOfAnotherGraph) {
  const Stream stream = NewStream();
  int32_t* a = NewBuffer();
  int32_t* b = NewBuffer();
  int32_t* c = NewBuffer();
  DeviceGraphNode second, replacement;
  const DeviceGraph graph = Captured(stream, [&] {
    EXPECT_OK(under_test_->Set(stream, a, kCount, 1));
    EXPECT_OK(under_test_->Set(stream, b, kCount, 2));
    EXPECT_OK(device_->LastNode(stream, &second));
  });
  const DeviceGraphExec exec = Instantiate(graph);
  const DeviceGraph alone = Captured(stream, [&] {
    EXPECT_OK(under_test_->Set(stream, c, kCount, 5));
    EXPECT_OK(device_->LastNode(stream, &replacement));
  });
  EXPECT_OK(device_->UpdateNode(exec, second, replacement));
  EXPECT_OK(device_->DestroyGraph(alone));
  EXPECT_OK(device_->Launch(exec, stream));
  EXPECT_OK(device_->Synchronize(stream));
  EXPECT_EQ(Value(a), 1);
  EXPECT_EQ(Value(b), 0);
  EXPECT_EQ(Value(c), 5);
  EXPECT_OK(device_->DestroyGraphExec(exec));
  EXPECT_OK(device_->DestroyGraph(graph));
}

TEST_P(Graphs, AStreamThatMadeNoNodeHasNoLastOne) {
  const Stream stream = NewStream();
  DeviceGraphNode node;
  EXPECT_CODE(kCaptureMode, device_->LastNode(stream, &node));
  const DeviceGraph graph = Captured(stream, [&] { EXPECT_CODE(kInvalidValue, device_->LastNode(stream, &node)); });
  EXPECT_FALSE(node);
  EXPECT_OK(device_->DestroyGraph(graph));
}

TEST_P(Graphs, PinnedCopiesAreCaptured) {
  const Stream stream = NewStream();
  int32_t* host = NewPinned(1);
  int32_t* result = NewPinned();
  int32_t* buffer = NewBuffer();
  const DeviceGraph graph = Captured(stream, [&] {
    EXPECT_OK(device_->CopyIn(buffer, host, kBytes, stream, MemoryKind::kPinned));
    EXPECT_OK(under_test_->Axpy(stream, buffer, buffer, 1, kCount));
    EXPECT_OK(device_->CopyOut(result, buffer, kBytes, stream, MemoryKind::kPinned));
  });
  const DeviceGraphExec exec = Instantiate(graph);
  std::fill_n(host, kCount, 4);
  EXPECT_OK(device_->Launch(exec, stream));
  EXPECT_OK(device_->Synchronize(stream));
  EXPECT_EQ(result[0], 8);
  EXPECT_OK(device_->DestroyGraphExec(exec));
  EXPECT_OK(device_->DestroyGraph(graph));
}

TEST_P(Graphs, AnExecutableMayGoWhileItRuns) {
  const Stream stream = NewStream();
  int32_t* a = NewBuffer();
  const DeviceGraph graph = Captured(stream, [&] { EXPECT_OK(under_test_->Set(stream, a, kCount, 6)); });
  const DeviceGraphExec exec = Instantiate(graph);
  const uint64_t hold = Hold(stream);
  EXPECT_OK(device_->Launch(exec, stream));
  EXPECT_OK(device_->DestroyGraphExec(exec));
  EXPECT_OK(device_->DestroyGraph(graph));
  Release(hold);
  EXPECT_OK(device_->Synchronize(stream));
  EXPECT_EQ(Value(a), 6);
}

}  // namespace
}  // namespace engine::test
