// Bulk: neighbouring ops for one device become one dispatch. They take their places in the order as they are pushed, and are
// issued together, one after another on one thread, with one wait and one record. Ops for the host are never held: inside a
// bulk or not, they take the same way, and cost the same.
//
//   engine::Bulk bulk(eng);                        // what this thread pushes to `eng` is bulked until the scope ends
//   for (Layer& layer : layers) layer.Forward(eng);
//
// A bulk merges dispatch, not accesses: order, names, errors, traces, waits and deletions are those of each op, and no op is
// ever hidden. It starts when it is full; when an op for another device or copy lane, of another priority, or an asynchronous
// one for a device comes; when anybody waits for a member or pushes behind one; after 1 to 2 ms in which its owner has
// pushed nothing that it holds; and at the end of its scope, thread or engine.
//
// TryPush is bulked as Push is. Operators and PushHeld go to the engine as ever.
// A capture takes its thread's pushes first. In a fork's child an open bulk is empty.
//
// Threads:   of the thread that made it, which pushes through it, releases and ends it.
// Ownership: may outlive its engine, whose shutdown releases it.
// Order:     as of the engine. Scopes nest: the innermost takes the ops, those outside keep theirs.
// Errors:    UsageError for a limit outside [0, kMaxBulkSize]. Source: MXNet's engine bulk, which merges accesses.
#pragma once

#include <memory>

#include "engine/engine.h"
#include "engine/spi/redirect.h"

namespace engine {

inline constexpr int kDefaultBulkSize = 15;  // MXNet's
inline constexpr int kMaxBulkSize = 1 << 20;

class Bulk final : public Submitter {
 public:
  // At most `limit` ops are held; 0 and 1: none, each starts by itself.
  explicit Bulk(Engine& engine, int limit = kDefaultBulkSize);
  ~Bulk();
  Bulk(const Bulk&) = delete;
  Bulk& operator=(const Bulk&) = delete;

  // Starts what is held now.
  void Release() noexcept;

 private:
  friend class BulkSizes;
  struct State;
  void Submit(const OpDesc& desc, detail::ClosureRef fn, Site site) override;
  bool TrySubmit(const OpDesc& desc, detail::ClosureRef fn, Site site) override;
  bool PutOther(const OpDesc& desc, detail::ClosureRef fn, Site site, bool may_wait);
  void Note(const OpDesc& desc, uint32_t held);
  void Opened() noexcept;

  const uint32_t limit_;
  const std::shared_ptr<State> state_;  // shared with the clock that watches it
  Placement place_;                     // of the ops that are held
  int priority_ = 0;
  const Redirect redirect_;
};

// The bulk size of this thread on `engine`, for what it pushes from now on: as if a Bulk had been opened that ends with the
// thread. Returns the size before; 0 and 1: no bulk. Inside a scope it takes effect at once, and outlasts the scope.
int SetBulkSize(Engine& engine, int size);

// SilenceByHand: for tests. While one lives, no clock watches open bulks; each Tick is the end of a millisecond.
class SilenceByHand {
 public:
  SilenceByHand();
  ~SilenceByHand();
  SilenceByHand(const SilenceByHand&) = delete;
  bool Tick();  // false: no bulk is open, and the clock would sleep
};

}  // namespace engine
