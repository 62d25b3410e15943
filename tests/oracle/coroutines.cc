// Coroutines that wait for Vars. To the checks each is a wait; in addition nobody may write while it looks at its Var.
#include <coroutine>
#include <cstring>

#include "engine/await.h"
#include "world.h"

namespace engine::oracle {
namespace {

// What a coroutine leaves behind. The release of `over` publishes the rest to the pusher.
struct Outcome {
  std::exception_ptr error;
  uint64_t end = 0;
  bool changed = false;
  std::atomic<bool> over{false};
};

struct Job {
  struct promise_type {
    Job get_return_object() noexcept { return {}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() noexcept {}
    void unhandled_exception() noexcept { std::terminate(); }
  };
};

Job LookAt(Var var, Placement place, const uint64_t& value, std::shared_ptr<Outcome> outcome) {
  try {
    co_await ResumeOn(place, var);
    const uint64_t seen = value;
    std::this_thread::yield();
    outcome->changed = value != seen;
  } catch (...) {
    outcome->error = std::current_exception();
  }
  outcome->end = Tick();
  outcome->over.store(true, std::memory_order_release);
}

}  // namespace

void World::AwaitVar(Pusher& me, Random& random, uint32_t index) {
  WaitRecord wait;
  wait.var = index;
  const auto outcome = std::make_shared<Outcome>();
  const Placement place = Has(kPlaces) && random.OneIn(4) ? Io() : Cpu();
  wait.begin = Tick();
  LookAt(vars_[index], place, cells_[index].value, outcome);
  while (!outcome->over.load(std::memory_order_acquire)) {  // an op without a worker needs somebody who drives
    try {
      eng_->WaitAllFor(std::chrono::microseconds(50));
    } catch (const OpError& error) {
      log_.Reported(error);
    } catch (const UsageError& error) {
      if (shutdown_begin_ == kNever) log_.Complain("a wait was refused: %s", error.what());
    }
  }
  wait.end = outcome->end;
  if (outcome->changed) log_.Complain("v%u changed while a coroutine held it", index);
  try {
    if (outcome->error) std::rethrow_exception(outcome->error);
  } catch (const OpError& error) {
    wait.root = log_.Shown(error);
    for (const OpError::Hop& hop : error.path()) wait.path.push_back(hop.op);
  } catch (const Error& error) {
    const bool refused = Has(kNoThreads) && strstr(error.what(), "the system refused");  // a thread for the op's pool
    if (shutdown_begin_ == kNever && !refused) log_.Complain("a coroutine was refused: %s", error.what());
    return;
  }
  me.waits.push_back(std::move(wait));
}

}  // namespace engine::oracle
