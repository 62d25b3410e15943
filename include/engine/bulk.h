// Bulk: neighbouring ops for one device become one dispatch. Each op takes its place in the order when it is pushed.
// The ops are issued together, one after another on one thread, with one wait and one record. Ops for the host are
// never held: they run and cost the same inside a bulk and outside.
//
//   engine::Bulk bulk(eng);                        // what this thread pushes to `eng` is bulked until the scope ends
//   for (Layer& layer : layers) layer.Forward(eng);
//
// A bulk merges dispatch, not accesses: order, names, errors, traces, waits and deletions are those of each op, and no
// op is hidden from anybody. The bulk releases its ops
//   - when it is full;
//   - when its thread pushes an op for another device, copy lane or priority, or an asynchronous op for a device;
//   - when anybody waits for one of its ops, or pushes an op behind one;
//   - when its thread has pushed nothing into it for 1 to 2 ms;
//   - at the end of its scope, of its thread or of its engine.
//
// A bulk takes ops of TryPush as it takes those of Push; Operators and PushHeld go straight to the engine. While a
// thread captures, the capture takes its pushes instead of the bulk. In a fork's child an open bulk is empty.
//
// Threads:   the thread that makes a bulk pushes through it, releases it and ends it.
// Ownership: a bulk may outlive its engine, whose shutdown releases it.
// Order:     as of the engine. Scopes nest: the innermost bulk takes the ops; those outside keep the ops that they
//            hold.
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
  // The bulk holds at most `limit` ops; with 0 or 1 it holds none, and each op starts by itself.
  explicit Bulk(Engine& engine, int limit = kDefaultBulkSize);
  ~Bulk();
  Bulk(const Bulk&) = delete;
  Bulk& operator=(const Bulk&) = delete;

  // Starts the ops that the bulk holds now.
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
  // Shared with the thread that watches for a pause in the pushes (src/bulk/idle_bulks.h).
  const std::shared_ptr<State> state_;
  Placement place_;  // placement of the ops that the bulk holds
  int priority_ = 0;
  const Redirect redirect_;
};

// Sets the bulk size of the calling thread's later pushes to `engine`, as if a Bulk were open until the thread ends.
// Returns the size before. 0 and 1: no bulk. Inside a Bulk's scope the new size takes effect at once, and outlasts the
// scope.
int SetBulkSize(Engine& engine, int size);

}  // namespace engine
