// The bulk size of a thread: a Bulk that no scope ends.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "state.h"

namespace engine {

class BulkSizes {
 public:
  static int Set(Engine& engine, int size) {
    // Made before the thread-local list: the Bulk makes the thread's slot in the engine, and that slot must be
    // destroyed after the list, whose end releases ops. Made before anything is changed, too, so that a size that is
    // refused changes nothing.
    auto bulk = std::make_unique<Bulk>(engine, size);
    auto& bulks = OfThread().bulks_;
    // Drop the bulks of engines that have ended: each keeps its engine's memory.
    std::erase_if(bulks, [](const auto& b) { return b->state_->ops.closed(); });
    const auto at = std::find_if(bulks.begin(), bulks.end(), [&](const auto& b) { return b->state_->ops.of(engine); });
    const int before = at == bulks.end() ? 0 : static_cast<int>((*at)->limit_);
    if (at != bulks.end()) bulks.erase(at);
    if (size != 0) bulks.push_back(std::move(bulk));
    return before;
  }

 private:
  // Statics that are destroyed at exit, after the thread-locals, may still call this. The list is then made anew and
  // never destroyed, so its ops are released by waits only.
  static BulkSizes& OfThread() {
    static thread_local constinit BulkSizes* own = nullptr;
    struct End {
      ~End() { delete std::exchange(own, nullptr); }
    };
    static thread_local End end;
    (void)&end;
    if (!own) own = new BulkSizes;
    return *own;
  }

  std::vector<std::unique_ptr<Bulk>> bulks_;  // one for each engine; destroyed when the thread ends
};

int SetBulkSize(Engine& engine, int size) { return BulkSizes::Set(engine, size); }

}  // namespace engine
