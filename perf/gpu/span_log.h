// SpanLog: where kernels on CUDA note when they ran, in device memory, so that a timeline costs the host nothing. Shared by the
// engine's ops and by the work by hand.
//
// Threads:   any; switched on and off while nothing runs.
// Ownership: of the target; made and destroyed with the device current.
// Errors:    throws DeviceError.
#pragma once

#include <atomic>
#include <map>
#include <mutex>

#include "kernels.h"
#include "target.h"

namespace engine::perf {

inline void MustCuda(const char* call, cudaError_t error) {
  if (error != cudaSuccess)
    throw DeviceError(
        DeviceStatus::Fail(DeviceCode::kUnknown, false, error, std::string(call) + ": " + cudaGetErrorName(error)));
}

class SpanLog {
 public:
  SpanLog();
  ~SpanLog();
  SpanLog(const SpanLog&) = delete;
  bool on() const { return on_.load(std::memory_order_relaxed); }
  // Where the next kernel of a stream notes its times; null if there is no room.
  Stamp* Next(cudaStream_t stream, const char* name);
  void Start();
  std::vector<Span> Stop();

 private:
  static constexpr size_t kSpans = size_t{1} << 16;
  Stamp* stamps_ = nullptr;
  std::atomic<bool> on_{false};  // relaxed: changed while nothing runs
  std::mutex mu_;
  std::vector<Span> spans_;
  std::map<void*, uint32_t> lanes_;
};

}  // namespace engine::perf
