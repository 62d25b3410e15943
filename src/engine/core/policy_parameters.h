// What policies there are and what they take: the declarations, behind plain types.
//
// dmlc-core's parameter.h and registry.h compile as C++17 only, and bring macros named CHECK and LOG: policy_parameters.cc
// is built as C++17 by itself, and nothing of dmlc passes this header.
//
// Threads: pure functions. Errors: std::invalid_argument, whose text says what is allowed.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/policy.h"

namespace engine::detail {

std::vector<PolicyInfo> DeclaredPolicies();  // in the order of engine::Policy
// Parses and checks text by name of the policy, which must be declared.
PolicyOptions ParsePolicy(const std::string& name, const std::map<std::string, std::string>& parameters);

}  // namespace engine::detail
