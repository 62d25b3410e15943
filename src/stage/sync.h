// A mutex that Clang's thread-safety analysis knows, and that condition variables accept.
#pragma once

#include <mutex>

#if defined(__clang__)
#define STAGE_TSA(x) __attribute__((x))
#else
#define STAGE_TSA(x)
#endif

namespace engine::detail {

class STAGE_TSA(capability("mutex")) StageMutex {
 public:
  void Lock() STAGE_TSA(acquire_capability()) { mu_.lock(); }
  void Unlock() STAGE_TSA(release_capability()) { mu_.unlock(); }
  std::mutex& native() { return mu_; }

 private:
  std::mutex mu_;
};

class STAGE_TSA(scoped_lockable) StageLock {
 public:
  explicit StageLock(StageMutex& mu) STAGE_TSA(acquire_capability(mu)) : lock_(mu.native()) {}
  ~StageLock() STAGE_TSA(release_capability()) {}
  StageLock(const StageLock&) = delete;
  std::unique_lock<std::mutex>& native() { return lock_; }  // for condition variables only

 private:
  std::unique_lock<std::mutex> lock_;
};

}  // namespace engine::detail
