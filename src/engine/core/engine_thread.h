// EngineThread: an operating-system thread of the engine. It plays a worker's role, stands in as a driver of the caller
// pool, or is idle.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <thread>

#include "core/core.h"

namespace engine::detail {

struct EngineCore::EngineThread {
  enum : uint32_t { kIdle, kPlay, kDrive, kExit };
  EngineCore* core = nullptr;
  std::thread thread;
  std::atomic<uint32_t> command{kIdle};  // futex word; written by whoever took the thread from idle_, then by it
  Worker* role = nullptr;                // published by the release of kPlay
  std::atomic<uint32_t> drive_until{WaitNode::kPending};  // kDone ends a kDrive
  EngineThread* next_lent = nullptr;                      // in the list of the wait that it drives for
  std::array<int, kMaxPools> hooked{};  // by pool whose on_start has run on it: 1 + the index of the worker, for on_end
};

}  // namespace engine::detail
