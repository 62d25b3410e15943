// EngineThread: an operating-system thread of the engine. It plays a worker's role, stands in as a driver of the caller
// pool, or is idle.
#pragma once

#include <atomic>
#include <bitset>
#include <cstdint>
#include <thread>

#include "core.h"

namespace engine::detail {

struct EngineCore::EngineThread {
  enum : uint32_t { kIdle, kPlay, kDrive, kExit };
  EngineCore* core = nullptr;
  std::thread thread;
  std::atomic<uint32_t> command{kIdle};  // futex word; written by whoever took the thread from idle_, then by it
  Worker* role = nullptr;                // published by the release of kPlay
  std::atomic<uint32_t> drive_until{WaitNode::kPending};  // kDone ends a kDrive
  std::bitset<kMaxPools> hooked_pools;                    // whose on_start has run on it
  std::vector<std::pair<const PoolOptions*, int>> hooks;  // on_end to run
};

}  // namespace engine::detail
