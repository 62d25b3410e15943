// Stages whose sources push random ops and wait for them, while a thread takes the stages' items.
#include "engine/stage.h"
#include "world.h"

namespace engine::oracle {

void World::StagesMain() {
  constexpr int kItems = 60;
  std::atomic<int> next{0};
  Var last;
  const auto push = [&](int item) {
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
    Stage<int> stage({.capacity = 1 + seed_ % 4, .num_threads = 1 + static_cast<int>(seed_ % 3)}, pull, make);
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
