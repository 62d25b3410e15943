#include <cuda_runtime_api.h>
#include <nccl.h>

#include "target.h"

namespace engine::perf {
namespace {

DeviceStatus NcclStatus(const char* call, ncclResult_t result) {
  if (result == ncclSuccess) return {};
  return DeviceStatus::Fail(DeviceCode::kUnknown, false, result, std::string(call) + ": " + ncclGetErrorString(result));
}

class NcclAllReduce final : public AllReduce {
 public:
  NcclAllReduce(std::shared_ptr<Device> device, size_t floats) : device_(std::move(device)), floats_(floats) {
    Must(device_->MakeCurrent());
    const int ordinal = device_->info().ordinal;
    Must(NcclStatus("ncclCommInitAll", ncclCommInitAll(&communicator_, 1, &ordinal)));
    Must(device_->CreateStream(0, &stream_));
    Must(device_->Allocate(floats * sizeof(float), stream_, &memory_));
    Must(device_->Synchronize(stream_));
  }
  ~NcclAllReduce() override {
    (void)ncclCommDestroy(communicator_);
    (void)device_->Free(memory_, stream_);
    (void)device_->Synchronize(stream_);
    (void)device_->DestroyStream(stream_);
  }
  DeviceStatus Run(Device& device, Stream stream) override {
    return NcclStatus("ncclAllReduce", ncclAllReduce(memory_, memory_, floats_, ncclFloat, ncclSum, communicator_,
                                                     static_cast<cudaStream_t>(device.NativeStream(stream))));
  }

 private:
  std::shared_ptr<Device> device_;
  const size_t floats_;
  ncclComm_t communicator_ = nullptr;
  Stream stream_;
  void* memory_ = nullptr;
};

}  // namespace

std::unique_ptr<AllReduce> MakeAllReduce(Target& target, size_t floats, std::string* why) {
  if (target.device()->info().kind != "cuda") {
    *why = "NCCL needs a CUDA device; this one is '" + target.device()->info().kind + "'";
    return nullptr;
  }
  return std::make_unique<NcclAllReduce>(target.device(), floats);
}

}  // namespace engine::perf
