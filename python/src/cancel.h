// Cancel: the cancel scope of a push.
#pragma once

#include <nanobind/nanobind.h>

#include "engine/engine.h"
#include "site.h"

namespace engine_python {

// `given`, or else the innermost scope that this context has entered; null if there is none. TypeError for anything
// else.
nanobind::object ScopeFor(nanobind::handle given, const Where& at);

// Closes, in the current context, the scopes of whoever pushed the body that runs in it.
void CloseScopes();

// The open scopes of the current context, which are these from now on; a tuple both.
nanobind::object ExchangeScopes(nanobind::object scopes);

void BindCancel(nanobind::module_& m);

}  // namespace engine_python
