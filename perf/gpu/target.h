// Target: a device under test, and what the suite needs of it beyond Device: kernels of a given length, kernels that are
// held, the same work by hand, and when each kernel ran. One implementation a backend.
//
// Threads:   as Device. Spans are switched on and off while nothing runs.
// Ownership: the device is shared with the engines that are made on it; engines go before the target.
// Errors:    launches return a DeviceStatus; making a target throws DeviceError.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/testing/software_device.h"

namespace engine::perf {

using Nanos = std::chrono::nanoseconds;

// A kernel that ran. Times are the device's own, in ns; lanes are numbered as they appear.
struct Span {
  uint32_t lane;
  std::string name;
  int64_t start;
  int64_t end;
};

class ByHand;

class Target {
 public:
  virtual ~Target() = default;
  virtual std::shared_ptr<Device> device() = 0;
  // Whether times say something about a GPU. Those of the software device, and of a model, are told, and judged by nobody.
  virtual bool judged() const = 0;

  // One kernel of about `time`, its only parameter; 0: an empty one. `name`, a literal, is for the timeline.
  virtual DeviceStatus Spin(Stream stream, Nanos time, const char* name = "spin") = 0;
  // The same by ctx.Launch, without a place in the timeline.
  virtual void Spin(RunContext& ctx, Nanos time) = 0;
  // A kernel that ends when it is released.
  virtual DeviceStatus Hold(Stream stream, uint64_t* hold) = 0;
  virtual void Release(uint64_t hold) = 0;
  // The work by hand: by_hand.h.
  virtual std::unique_ptr<ByHand> MakeByHand(int streams, int events = 0) = 0;

  virtual uint64_t launches() const = 0;  // of Spin and Hold
  virtual void StartSpans() = 0;
  virtual std::vector<Span> StopSpans() = 0;
};

std::unique_ptr<Target> MakeSoftwareTarget(SoftwareDeviceOptions options = {});
// Null, and `why` says what is missing, where there is no CUDA device or no kernels were built.
std::unique_ptr<Target> MakeCudaTarget(std::string* why);

// As the runtime codes them: 13000 is 13.0; 0: unknown. Without CUDA, both.
struct CudaVersions {
  int runtime = 0, driver = 0;
};
CudaVersions VersionsOfCuda();

// All-reduce by NCCL's own calls, in a communicator of one rank on this device: what is measured is the way to the call,
// not the network. Not in place, for then NCCL would do nothing at all.
class RawAllReduce {
 public:
  virtual ~RawAllReduce() = default;
  virtual DeviceStatus Run(const void* from, void* to, size_t floats, void* native_stream) = 0;
};
// Null, and `why` says what is missing.
std::unique_ptr<RawAllReduce> MakeRawAllReduce(Target& target, std::string* why);

inline void Must(DeviceStatus status) {
  if (!status.ok()) throw DeviceError(std::move(status));
}

}  // namespace engine::perf
