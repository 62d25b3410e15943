// Check: explores a scenario under the dependency protocol, as it ships or with one fault planted.
#pragma once

#include "dependency.h"
#include "explorer.h"
#include "scenario.h"

namespace checker {

Outcome Check(const Scenario& scenario, engine::detail::Mutant mutant = engine::detail::Mutant::kNone);

}  // namespace checker
