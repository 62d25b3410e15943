// Push: engine.push and the like (push_async, try_push, push_held, new_operator), as functions for the default engine and as
// methods of Engine.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "engine/graph.h"
#include "failure.h"
#include "gil.h"
#include "handle.h"
#include "policy.h"
#include "site.h"
#include "wait.h"

namespace engine_python {

// The placement for None, a Placement, "io" or the name of a pool.
engine::Placement PlaceOf(const StatePtr& state, nanobind::handle place, const Where& at);

// The Vars of one access mode, given as None, a Var, a Value, or several of these. Counted, because a Value's Var could
// die before the push.
// `of_roots`: gets the Vars of what the Values are views of, instead of what is returned.
std::vector<engine::Var> VarsOf(nanobind::handle given, const char* mode, const Where& at,
                                std::vector<engine::Var>* of_roots = nullptr);
int PriorityOf(nanobind::handle given, const Where& at);
// The GraphKey, if one is given; UsageError if the op is not on a device.
engine::GraphKey GraphKeyOf(nanobind::handle given, engine::Placement place, const Where& at);

// The graph into which this thread's pushes are recorded instead of being pushed; null: none.
extern thread_local engine::Graph* recording;

// Pushes; without the GIL where the push may run bodies or wait. Throws what the push throws, and KeyboardInterrupt.
template <bool kAsync = false, class Body>
void SubmitBody(const StatePtr& state, const engine::OpDesc& desc, Body body, engine::Site site) {
  engine::Engine& eng = state->engine;
  const PolicyHere policy(state);
  const auto try_push = [&] {
    if constexpr (kAsync) {
      return eng.TryPushAsync(desc, std::move(body), site);
    } else {
      return eng.TryPush(desc, std::move(body), site);
    }
  };
  // A push takes less time than giving the GIL up and getting it back, and it never waits for a body. So it keeps the
  // GIL, unless the queue is full or ops run inside their push.
  if (!state->caller_runs && engine::UsesWorkers(eng.policy()) && try_push()) return;
  PushWithoutGil([&] {
    if constexpr (kAsync) {
      eng.PushAsync(desc, std::move(body), site);
    } else {
      eng.Push(desc, std::move(body), site);
    }
  });
}

void BindPush(nanobind::module_& m, nanobind::class_<PyEngine>& cls);

}  // namespace engine_python
