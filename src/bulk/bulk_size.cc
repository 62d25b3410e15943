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
    // Before our thread-local: it makes the thread's slot in the engine, which must go after what we release then. The
    // innermost, and made first, so that a size that is refused changes nothing.
    auto bulk = std::make_unique<Bulk>(engine, size);
    auto& bulks = OfThread().bulks_;
    // Engines that have gone: a Bulk keeps their memory.
    std::erase_if(bulks, [](const auto& b) { return b->state_->ops.closed(); });
    const auto at = std::find_if(bulks.begin(), bulks.end(), [&](const auto& b) { return b->state_->ops.of(engine); });
    const int before = at == bulks.end() ? 0 : static_cast<int>((*at)->limit_);
    if (at != bulks.end()) bulks.erase(at);
    if (size != 0) bulks.push_back(std::move(bulk));
    return before;
  }

 private:
  // Also for what is destroyed after the thread-locals, at exit the statics: then made anew, and released by waits only.
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

  std::vector<std::unique_ptr<Bulk>> bulks_;  // one an engine; ends with the thread
};

int SetBulkSize(Engine& engine, int size) { return BulkSizes::Set(engine, size); }

}  // namespace engine
