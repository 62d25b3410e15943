#include "handle.h"

#include <algorithm>
#include <thread>

#include "body.h"
#include "failure.h"
#include "gil.h"

namespace nb = nanobind;

namespace engine_python {
namespace {

StatePtr& Default() {
  static auto* state = new StatePtr;  // never destroyed: exit shuts the engine down, and later threads may still look
  return *state;
}

std::vector<std::weak_ptr<EngineState>>& Registry() {
  static auto* states = new std::vector<std::weak_ptr<EngineState>>;
  return *states;
}

// A drain waits for bodies, which need the GIL, so whoever drops the last handle must give the GIL up.
void Destroy(EngineState* state) {
  if (Leaving()) {
    if (!state->shut_down) return;  // its threads cannot be joined any more: leak it
    delete state;
  } else if (CurrentBody()) {
    // This is a worker, perhaps one of that engine, and a worker cannot join itself. Exit waits for this thread.
    std::thread([state, away = Away()] {
      delete state;
      ForgetThread();
    }).detach();
  } else if (HasGil()) {
    WithoutGil([&] { delete state; });
  } else {
    delete state;
  }
}

}  // namespace

StatePtr NewState(engine::EngineOptions options, uint64_t max_pending_bytes) {
  EngineState* made = nullptr;
  try {
    WithoutGil([&] { made = new EngineState(std::move(options), max_pending_bytes); });
  } catch (...) {
    Raise(std::current_exception());
  }
  StatePtr state(made, &Destroy);
  auto& registry = Registry();
  std::erase_if(registry, [](const auto& weak) { return weak.expired(); });
  registry.push_back(state);
  return state;
}

StatePtr DefaultState() {
  if (!Default()) {
    engine::EngineOptions options;
    try {
      options = engine::EngineOptions::FromEnv();
    } catch (...) {
      Raise(std::current_exception());
    }
    const bool caller_runs = !engine::UsesWorkers(options.policy);
    StatePtr made = NewState(std::move(options));
    made->caller_runs = caller_runs;
    if (!Default()) Default() = made;  // another thread may have made one while we did not have the GIL
  }
  return Default();
}

bool HasDefaultState() { return Default() != nullptr; }
void SetDefaultState(StatePtr state) { Default() = std::move(state); }

StatePtr StateOf(nb::handle engine, const char* what) {
  if (engine.is_none()) return DefaultState();
  if (nb::isinstance<PyEngine>(engine)) return nb::inst_ptr<PyEngine>(engine)->state;
  RaiseTypeError(std::string(what) + ": engine is " + ATypeOf(engine.ptr()) + "; an Engine is expected");
}

std::vector<StatePtr> LiveStates() {
  std::vector<StatePtr> live;
  for (const auto& weak : Registry()) {
    if (auto state = weak.lock()) live.push_back(std::move(state));
  }
  return live;
}

void ForgetPendingCalls() {
  // A new one, because a call that forked ends here as well, and takes itself off the one that it is counted in.
  for (const StatePtr& state : LiveStates()) {
    state->bytes = std::make_shared<ByteBound>(state->bytes->most());
    state->abandoned.clear();  // their threads are the parent's
  }
}

nb::object FindVar(nb::handle object) {
  if (nb::isinstance<PyVar>(object)) return nb::borrow(object);
  nb::object inner = nb::steal(PyObject_GetAttrString(object.ptr(), "var"));
  if (inner.is_valid() && nb::isinstance<PyVar>(inner)) return inner;
  ForgetError();
  return {};
}

void RaiseNoVar(nb::handle object, const std::string& what) {
  RaiseTypeError(what + " is " + ATypeOf(object.ptr()) + "; a Var or a Value is expected");
}

void RaiseNoEngine(const std::string& what) {
  RaiseError("ShutdownError", "the engine of " + what + " is gone; keep the Engine as long as " + what + " is used");
}

StatePtr EngineOf(const PyVar& var) {
  StatePtr state = var.engine.lock();
  if (!state) RaiseNoEngine(std::string("Var '") + var.var.name() + "'");
  return state;
}

}  // namespace engine_python
