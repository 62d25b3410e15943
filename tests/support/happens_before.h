// HappensBefore: does the device's order explain every access? Vector clocks over lanes, events and the host, fed by a
// SoftwareDevice as its observer. It knows nothing of the engine, which is why it can say that the engine forgot a wait.
//
// Each lane and the host has a clock. Work ticks its lane; it comes behind what the host knew when it was put there, and
// behind the events that its lane waited for. Two accesses of the same bytes, one of them a write, must be ordered by
// that, whatever order they happened to run in. All host threads are one: what one of them has learned, all are taken to
// know, so that orders between host threads are not checked here.
//
// Threads:   all methods on any thread.
// Ownership: shared by the test and the device (SoftwareDeviceOptions::observer).
// Errors:    races are collected and described; a test asks for them at its end.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "engine/testing/software_device.h"

namespace engine::test {

class HappensBefore : public DeviceObserver {
 public:
  // The host itself reads or writes memory, now. For buffers that the device writes by copies, or pinned ones.
  void HostAccess(const std::string& name, const void* memory, size_t bytes, bool writes);
  std::vector<std::string> races() const;
  uint64_t checked() const;  // accesses looked at; a test asserts that there were any

  void OnWork(uint32_t lane, const SoftwareKernel& work) override;
  void OnRecord(uint64_t event, uint32_t lane) override;
  void OnWait(uint32_t lane, uint64_t event) override;
  void OnHostSync(uint64_t event) override;
  void OnForget(uint64_t event) override;
  void OnAllocate(uint32_t lane, const void* memory, size_t bytes) override;
  void OnFree(uint32_t lane, const void* memory, size_t bytes) override;

 private:
  static constexpr uint32_t kHost = 0;  // lanes count from 1
  using VectorClock = std::map<uint32_t, uint64_t>;
  struct Access {
    std::string name;
    uint32_t lane;
    uint64_t time;  // of the lane's own clock
    bool freed = false;
  };
  // A run of bytes with one history: the newest write, and the reads since.
  struct Bytes {
    uintptr_t end;
    Access write;
    std::vector<Access> reads;
  };
  enum class Kind { kRead, kWrite, kAllocate, kFree };

  uint64_t Tick(uint32_t lane);
  void Touch(const std::string& name, uint32_t lane, uint64_t time, const void* memory, size_t bytes, Kind kind);
  void Compare(const Access& before, const char* did, const Access& now, const char* does);
  void SplitAt(uintptr_t address);
  static void Join(VectorClock& into, const VectorClock& from);

  mutable std::mutex mu_;
  std::map<uint32_t, VectorClock> lanes_;
  std::map<uint64_t, VectorClock> events_;
  std::map<uintptr_t, Bytes> memory_;
  std::vector<std::string> races_;
  uint64_t checked_ = 0;
};

}  // namespace engine::test
