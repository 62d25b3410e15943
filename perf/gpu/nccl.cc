#include <cuda_runtime_api.h>
#include <nccl.h>

#include "target.h"

namespace engine::perf {
namespace {

DeviceStatus NcclStatus(const char* call, ncclResult_t result) {
  if (result == ncclSuccess) return {};
  return DeviceStatus::Fail(DeviceCode::kUnknown, false, result, std::string(call) + ": " + ncclGetErrorString(result));
}

class NcclAllReduce final : public RawAllReduce {
 public:
  explicit NcclAllReduce(std::shared_ptr<Device> device) : device_(std::move(device)) {
    Must(device_->MakeCurrent());
    const int ordinal = device_->info().ordinal;
    Must(NcclStatus("ncclCommInitAll", ncclCommInitAll(&communicator_, 1, &ordinal)));
  }
  ~NcclAllReduce() override { (void)ncclCommDestroy(communicator_); }
  DeviceStatus Run(const void* from, void* to, size_t floats, void* native_stream) override {
    return NcclStatus("ncclAllReduce", ncclAllReduce(from, to, floats, ncclFloat, ncclSum, communicator_,
                                                     static_cast<cudaStream_t>(native_stream)));
  }

 private:
  std::shared_ptr<Device> device_;
  ncclComm_t communicator_ = nullptr;
};

}  // namespace

std::unique_ptr<RawAllReduce> MakeRawAllReduce(Target& target, std::string* why) {
  if (target.device()->info().kind != "cuda") {
    *why = "NCCL needs a CUDA device; this one is '" + target.device()->info().kind + "'";
    return nullptr;
  }
  int version = 0;
  if (const ncclResult_t result = ncclGetVersion(&version); result != ncclSuccess) {
    *why = ncclGetErrorString(result);
    return nullptr;
  }
  return std::make_unique<NcclAllReduce>(target.device());
}

}  // namespace engine::perf
