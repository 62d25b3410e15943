// How a fork finds what the engine's threads share, and how code knows that it runs in a fork's child.
//
// Every lock is of one of three kinds. Taken before a fork and dropped in both processes: what it guards is whole in
// the child. Renewed in the child, with what it guards. Not used in the child (locks of devices, of runs in flight).
// src/engine/README.md lists them.
//
// Threads: any. Forks() changes only while the child has one thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace engine::detail {

// How many forks lie between the first process and this one. relaxed: see Threads.
inline constinit std::atomic<uint32_t> g_forks{0};

// What was made while Forks() was another number belongs to an ancestor of this process.
inline uint32_t Forks() noexcept { return g_forks.load(std::memory_order_relaxed); }

// In a fork's child: makes the object anew, whole, so that no field of it can be forgotten. The old one is not
// destroyed: it may have been in use by a thread that does not exist here.
template <class T, class... Args>
void Renew(T& object, Args&&... args) {
  ::new (static_cast<void*>(&object)) T(std::forward<Args>(args)...);
}

struct PlanCore;

// Locks of the whole process that are taken before a fork: of plans, of interned names, and of the loopback worlds.
void LockPlans();
// Returns the plans that were locked. They may be the last handles of their plans: they are dropped when no lock of the fork is
// taken any more.
[[nodiscard]] std::vector<std::shared_ptr<PlanCore>> UnlockPlans();
void LockNames();
void UnlockNames();
void LockLoopbackWorlds();
void UnlockLoopbackWorlds();

}  // namespace engine::detail
