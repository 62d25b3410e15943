// CountingDevice: another device, with every call counted, so that what the engine asks of a device is known on every
// backend. Kernels are not launched through Device: Target counts them.
//
// Threads, ownership, errors: the inner device's.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <set>

#include "engine/testing/software_device.h"

namespace engine::perf {

class CountingDevice final : public Device {
 public:
  explicit CountingDevice(std::shared_ptr<Device> inner) : Device(inner->info()), inner_(std::move(inner)) {}
  DeviceCounts counts() const;

  DeviceStatus MakeCurrent() override { return inner_->MakeCurrent(); }
  DeviceStatus EnterThread() override { return inner_->EnterThread(); }
  DeviceStatus TakeLastError() override { return inner_->TakeLastError(); }
  DeviceStatus CreateStream(int priority, Stream* stream) override;
  DeviceStatus DestroyStream(Stream stream) override;
  void* NativeStream(Stream stream) const noexcept override { return inner_->NativeStream(stream); }
  DeviceStatus CreateEvent(Event* event) override;
  DeviceStatus CreateTimedEvent(Event* event) override;
  DeviceStatus DestroyEvent(Event event) override;
  DeviceStatus Record(Event event, Stream stream) override;
  DeviceStatus Wait(Stream stream, Event event) override;
  DeviceStatus Query(Event event) override;
  DeviceStatus Query(Stream stream) override;
  DeviceStatus Elapsed(Event from, Event to, std::chrono::nanoseconds* took) override;
  DeviceStatus Synchronize(Event event) override;
  DeviceStatus Synchronize(Stream stream) override;
  DeviceStatus CopyIn(void* to, const void* from, size_t bytes, Stream stream, MemoryKind memory) override;
  DeviceStatus CopyOut(void* to, const void* from, size_t bytes, Stream stream, MemoryKind memory) override;
  DeviceStatus CopyWithin(void* to, const void* from, size_t bytes, Stream stream) override;
  DeviceStatus Allocate(size_t bytes, Stream stream, void** memory) override;
  DeviceStatus Free(void* memory, Stream stream) override;
  DeviceStatus TrimPool(size_t keep) override { return inner_->TrimPool(keep); }
  DeviceStatus AllocatePinned(size_t bytes, void** memory) override;
  DeviceStatus FreePinned(void* memory) override;
  DeviceStatus KindOf(const void* memory, MemoryKind* kind) override { return inner_->KindOf(memory, kind); }
  DeviceStatus BeginCapture(Stream stream) override;
  DeviceStatus EndCapture(Stream stream, DeviceGraph* graph) override;
  DeviceStatus IsCapturing(Stream stream, bool* capturing) override { return inner_->IsCapturing(stream, capturing); }
  DeviceStatus LastNode(Stream stream, DeviceGraphNode* node) override;
  DeviceStatus DestroyGraph(DeviceGraph graph) override;
  DeviceStatus Instantiate(DeviceGraph graph, DeviceGraphExec* exec, size_t* bytes) override;
  DeviceStatus Update(DeviceGraphExec exec, DeviceGraph graph) override;
  DeviceStatus UpdateNode(DeviceGraphExec exec, DeviceGraphNode node, DeviceGraphNode from) override;
  DeviceStatus UpdateNode(DeviceGraphExec exec, DeviceGraphNode node, const KernelLaunch& launch) override;
  DeviceStatus LaunchKernel(const KernelLaunch& launch, Stream stream) override {
    return inner_->LaunchKernel(launch, stream);
  }
  DeviceStatus Launch(DeviceGraphExec exec, Stream stream) override;
  DeviceStatus DestroyGraphExec(DeviceGraphExec exec) override;

 private:
  void Count(DeviceCall call) { calls_[static_cast<size_t>(call)].fetch_add(1, std::memory_order_relaxed); }
  void CountCopy(const void* host, MemoryKind memory);

  const std::shared_ptr<Device> inner_;
  std::array<std::atomic<uint64_t>, static_cast<size_t>(DeviceCall::kCount)> calls_{};  // relaxed: counters
  std::mutex mu_;
  std::set<void*> recorded_;  // events that were, under mu_
};

}  // namespace engine::perf
