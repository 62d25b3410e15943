// HeldOp, HeldOps: ops whose places in the order are taken, and whose start waits. For tests and for decorators.
//
// HeldOp is one such op: it starts when it is released or dropped, or when the engine shuts down.
//
// HeldOps are ops for devices that take their places in the order as they are pushed, and are issued together, one after another
// on one thread: one dispatch. It merges no accesses, so order, errors, names and waits are those of each op. `bulk.h` adds when
// to let go; what anybody waits for or pushes behind is let go by the engine itself. Source: MXNet's bulk, which merges
// accesses and thereby hides ops from other threads.
//
// Threads:   HeldOps::Push by one thread; Release by any.
// Ownership: both may outlive the engine.
#pragma once

#include <cstdint>
#include <utility>

#include "engine/submitter.h"

namespace engine {

class HeldOp {
 public:
  HeldOp() noexcept = default;
  HeldOp(HeldOp&& other) noexcept : claim_(std::exchange(other.claim_, nullptr)) {}
  HeldOp& operator=(HeldOp&& other) noexcept {
    Release();
    claim_ = std::exchange(other.claim_, nullptr);
    return *this;
  }
  ~HeldOp() { Release(); }
  void Release() noexcept;

 private:
  friend class Engine;
  detail::CompletionState* claim_ = nullptr;
};

class HeldOps {
 public:
  explicit HeldOps(Engine& engine);
  ~HeldOps();  // releases
  HeldOps(const HeldOps&) = delete;
  HeldOps& operator=(const HeldOps&) = delete;

  // Whether an op that is placed there is held: on a device. Every other goes straight to the engine.
  bool Holds(const Placement& place) const;
  // How many ops are held now, this one included. 0: somebody needed this one, and all have been released; or the op is none
  // that is held, and was pushed past those that are.
  template <detail::SyncBody F>
  uint32_t Push(const OpDesc& desc, F&& fn, Site site = std::source_location::current()) {
    return PushErased(desc, detail::RefClosure(std::forward<F>(fn)), site);
  }
  // For decorators, closures erased. Try: kNoRoom instead of waiting at the soft bound; nothing was pushed then.
  uint32_t PushErased(const OpDesc& desc, detail::ClosureRef fn, Site site);
  uint32_t TryPushErased(const OpDesc& desc, detail::ClosureRef fn, Site site);
  static constexpr uint32_t kNoRoom = UINT32_MAX;
  // Pushes an op that is not held, whatever Redirect says; those that are stay. False: no room, as above.
  bool PushPast(const OpDesc& desc, detail::ClosureRef fn, Site site, bool may_wait = true);
  void Release() noexcept;
  bool of(const Engine& engine) const noexcept;  // whether they are this engine's
  bool closed() const noexcept;                  // whether that engine takes no more ops

 private:
  friend class detail::EngineCore;
  uint32_t PushOrTry(const OpDesc& desc, detail::ClosureRef fn, Site site, bool may_wait);
  detail::EngineCore* core_;  // counted
  detail::HeldOwner* owner_;  // in the core's list of all that may hold ops
};

}  // namespace engine
