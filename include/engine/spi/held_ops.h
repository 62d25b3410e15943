// HeldOps: ops for devices that have their places in the order, and start only when they are released. For tests and
// for decorators. (HeldOp, in held_op.h, is one such op, on any placement.)
//
// Each op takes its place in the order when it is pushed; all are issued together, one after another on one thread, as
// one dispatch. Accesses are not merged, so order, errors, names and waits are those of each op. `bulk.h` decides when
// to release the ops; the engine itself releases them when anybody waits for one or pushes an op behind one. Source:
// MXNet's bulk, which merges accesses and thereby hides ops from other threads.
//
// Threads:   HeldOps::Push by one thread; Release by any.
// Ownership: they may outlive the engine.
#pragma once

#include <cstdint>
#include <utility>

#include "engine/held_op.h"
#include "engine/submitter.h"

namespace engine {

class HeldOps {
 public:
  explicit HeldOps(Engine& engine);
  ~HeldOps();  // releases
  HeldOps(const HeldOps&) = delete;
  HeldOps& operator=(const HeldOps&) = delete;

  // Whether ops with this placement are held: those on a device are. All others go straight to the engine.
  bool Holds(const Placement& place) const;
  // Returns how many ops are held now, the new one included. 0: somebody needed the new op, so all were released; or the
  // op is not for a device, and was pushed past the held ones, which stay held.
  template <detail::SyncBody F>
  uint32_t Push(const OpDesc& desc, F&& fn, Site site = std::source_location::current()) {
    return PushErased(desc, detail::RefClosure(std::forward<F>(fn)), site);
  }
  // For decorators, with an erased closure. The Try form returns kNoRoom instead of waiting at the soft bound; nothing
  // was pushed then.
  uint32_t PushErased(const OpDesc& desc, detail::ClosureRef fn, Site site);
  uint32_t TryPushErased(const OpDesc& desc, detail::ClosureRef fn, Site site);
  static constexpr uint32_t kNoRoom = UINT32_MAX;
  // Pushes an op that is not held, whatever Redirect says; the held ops stay held. False: there was no room, as above.
  bool PushPast(const OpDesc& desc, detail::ClosureRef fn, Site site, bool may_wait = true);
  void Release() noexcept;
  bool of(const Engine& engine) const noexcept;  // whether the ops are for this engine
  bool closed() const noexcept;                  // whether that engine takes no more ops

 private:
  friend class detail::EngineCore;
  uint32_t PushOrTry(const OpDesc& desc, detail::ClosureRef fn, Site site, bool may_wait);
  detail::EngineCore* core_;   // keeps the core alive
  detail::ChainOwner* owner_;  // an entry in the core's list of all who may hold ops
};

}  // namespace engine
