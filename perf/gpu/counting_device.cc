#include "counting_device.h"

#include "heap.h"

namespace engine::perf {

DeviceCounts CountingDevice::counts() const {
  DeviceCounts out;
  for (size_t i = 0; i < out.calls.size(); ++i) out.calls[i] = calls_[i].load(std::memory_order_relaxed);
  return out;
}

// An event whose record before has not been reached yet must not be recorded anew: somebody may wait for it.
DeviceStatus CountingDevice::Record(Event event, Stream stream) {
  const HeapPause pause;
  Count(DeviceCall::kRecord);
  bool again;
  {
    const std::lock_guard lock(mu_);
    again = !recorded_.insert(event.raw).second;
  }
  if (again && inner_->Query(event).code() == DeviceCode::kNotReady) Count(DeviceCall::kRecordPending);
  return inner_->Record(event, stream);
}

DeviceStatus CountingDevice::DestroyEvent(Event event) {
  const HeapPause pause;
  Count(DeviceCall::kDestroyEvent);
  {
    const std::lock_guard lock(mu_);
    recorded_.erase(event.raw);
  }
  return inner_->DestroyEvent(event);
}

void CountingDevice::CountCopy(const void* host, MemoryKind memory) {
  Count(DeviceCall::kCopy);
  if (memory == MemoryKind::kUnknown && !inner_->KindOf(host, &memory).ok()) return;
  if (memory == MemoryKind::kPageable) Count(DeviceCall::kPageableCopy);
}

DeviceStatus CountingDevice::CopyIn(void* to, const void* from, size_t bytes, Stream stream, MemoryKind memory) {
  const HeapPause pause;
  CountCopy(from, memory);
  return inner_->CopyIn(to, from, bytes, stream, memory);
}
DeviceStatus CountingDevice::CopyOut(void* to, const void* from, size_t bytes, Stream stream, MemoryKind memory) {
  const HeapPause pause;
  CountCopy(to, memory);
  return inner_->CopyOut(to, from, bytes, stream, memory);
}
DeviceStatus CountingDevice::CopyWithin(void* to, const void* from, size_t bytes, Stream stream) {
  const HeapPause pause;
  Count(DeviceCall::kCopy);
  return inner_->CopyWithin(to, from, bytes, stream);
}

// The rest is counted and passed on.
#define COUNTED(method, call, parameters, arguments) \
  DeviceStatus CountingDevice::method parameters {   \
    const HeapPause pause;                           \
    Count(DeviceCall::call);                         \
    return inner_->method arguments;                 \
  }
COUNTED(CreateStream, kCreateStream, (int priority, Stream* stream), (priority, stream))
COUNTED(DestroyStream, kDestroyStream, (Stream stream), (stream))
COUNTED(CreateEvent, kCreateEvent, (Event * event), (event))
COUNTED(CreateTimedEvent, kCreateEvent, (Event * event), (event))
COUNTED(Elapsed, kElapsed, (Event from, Event to, std::chrono::nanoseconds* took), (from, to, took))
COUNTED(Wait, kWait, (Stream stream, Event event), (stream, event))
COUNTED(Query, kQuery, (Event event), (event))
COUNTED(Query, kQuery, (Stream stream), (stream))
COUNTED(Synchronize, kSynchronize, (Event event), (event))
COUNTED(Synchronize, kSynchronize, (Stream stream), (stream))
COUNTED(Allocate, kAllocate, (size_t bytes, Stream stream, void** memory), (bytes, stream, memory))
COUNTED(Free, kFree, (void* memory, Stream stream), (memory, stream))
COUNTED(AllocatePinned, kAllocatePinned, (size_t bytes, void** memory), (bytes, memory))
COUNTED(FreePinned, kFreePinned, (void* memory), (memory))
COUNTED(BeginCapture, kBeginCapture, (Stream stream), (stream))
COUNTED(EndCapture, kEndCapture, (Stream stream, DeviceGraph* graph), (stream, graph))
COUNTED(Instantiate, kInstantiate, (DeviceGraph graph, DeviceGraphExec* exec, size_t* bytes), (graph, exec, bytes))
COUNTED(Update, kUpdate, (DeviceGraphExec exec, DeviceGraph graph), (exec, graph))
COUNTED(UpdateNode, kUpdateNode, (DeviceGraphExec exec, DeviceGraphNode node, DeviceGraphNode from), (exec, node, from))
COUNTED(UpdateNode, kUpdateNode, (DeviceGraphExec exec, DeviceGraphNode node, const KernelLaunch& launch),
        (exec, node, launch))
COUNTED(Launch, kLaunchGraph, (DeviceGraphExec exec, Stream stream), (exec, stream))
#undef COUNTED

DeviceStatus CountingDevice::LastNode(Stream stream, DeviceGraphNode* node) {
  const HeapPause pause;
  return inner_->LastNode(stream, node);
}
DeviceStatus CountingDevice::DestroyGraph(DeviceGraph graph) {
  const HeapPause pause;
  return inner_->DestroyGraph(graph);
}
DeviceStatus CountingDevice::DestroyGraphExec(DeviceGraphExec exec) {
  const HeapPause pause;
  return inner_->DestroyGraphExec(exec);
}

}  // namespace engine::perf
