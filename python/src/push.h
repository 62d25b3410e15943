// Push: engine.push and engine.push_async, for the default engine and for any.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "engine/graph.h"
#include "handle.h"
#include "site.h"

namespace engine_python {

// None, a Placement, "io" or the name of a pool.
engine::Placement PlaceOf(const StatePtr& state, nanobind::handle place, const Where& at);

// The Vars of one role: None, a Var, a Value, or several. Counted, because a Value's Var could die before the push.
std::vector<engine::Var> VarsOf(nanobind::handle given, const char* role, const Where& at);
int PriorityOf(nanobind::handle given, const Where& at);
// None, or a GraphKey, which an op that is not on a device must not have.
engine::GraphKey GraphKeyOf(nanobind::handle given, engine::Placement place, const Where& at);

// Where this thread's pushes are recorded instead of pushed; null: nowhere.
extern thread_local engine::Graph* recording;

void BindPush(nanobind::module_& m, nanobind::class_<PyEngine>& cls);

}  // namespace engine_python
