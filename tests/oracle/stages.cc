// Stages whose sources push random ops and wait for them, while a thread takes the stages' items.
#include <functional>

#include "faults.h"
#include "world.h"

namespace engine::oracle {

void World::StagesMain() {
  constexpr int kItems = 60;
  std::atomic<int> next{0};
  Var last;
  const auto push = [&](int item) {
    const GoodAllocations good;
    Pusher* const me = BorrowPusher();
    Random random(seed_ * 1299709 + static_cast<uint64_t>(item));
    PushOne(*me, random, 1);
    GiveBack(me);
  };
  // One producer at a time calls `pull`, in order, so nothing else needs to order its ops.
  const auto pull = [&]() -> std::optional<int> {
    const int item = next++;
    if (item == kItems) return {};
    push(item);
    return item;
  };
  const auto make = [&](int item) {
    push(kItems + item);
    const Var mine = eng_->NewVar();
    int made = -1;
    CancelScope never;
    eng_->Push({.name = "item", .updates = {last}, .writes = {mine}, .cancel = &never}, [&made, item] { made = item; });
    eng_->Wait(mine);
    return made;
  };
  try {
    last = eng_->NewVar();
    // Not on this thread's stack, which new threads of a fork's child get.
    const auto owned = std::make_unique<Stage<int>>(
        StageOptions{.capacity = 1 + seed_ % 4, .num_threads = 1 + static_cast<int>(seed_ % 3)}, pull, make);
    Stage<int>& stage = *owned;
    const auto publish = [this](Stage<int>* now) {
      std::lock_guard lock(others_mu_);
      stage_ = now;
    };
    publish(&stage);
    // Also where Take throws.
    const std::unique_ptr<World, std::function<void(World*)>> unpublish(this, [&](World*) { publish(nullptr); });
    int expected = 0;
    while (const std::optional<int> item = stage.Take()) {
      if (*item != expected) log_.Complain("a stage gave item %d where %d comes", *item, expected);
      ++expected;
    }
    if (expected != kItems) log_.Complain("a stage gave %d items of %d", expected, kItems);
  } catch (const UsageError& error) {  // the engine has been shut down meanwhile
    if (shutdown_begin_ == kNever) log_.Complain("a stage threw %s", error.what());
  } catch (const Error& error) {
    log_.Complain("a stage threw %s", error.what());
  }
}

}  // namespace engine::oracle
