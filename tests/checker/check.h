// Check: explores a scenario under the dependency protocol, as it ships or with one fault planted.
#pragma once

#include "explorer.h"
#include "order/dependency.h"
#include "scenario.h"

namespace checker {

Outcome Check(const Scenario& scenario, engine::detail::Mutant mutant = engine::detail::Mutant::kNone);

}  // namespace checker
