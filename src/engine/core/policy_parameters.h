// The policies and their parameters, in plain types.
//
// dmlc-core's parameter.h and registry.h compile as C++17 only, and define macros named CHECK and LOG. So only
// policy_parameters.cc, which is built as C++17, includes them.
//
// Threads: pure functions. Errors: std::invalid_argument, whose text says what is allowed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace engine::detail {

struct DeclaredParameter {
  std::string name, type, help;
};
struct DeclaredPolicy {
  int policy = 0;  // engine::Policy
  std::string name, help;
  std::vector<DeclaredParameter> parameters;
};
struct PolicyValues {
  bool raise_at_push = false;
  int intra_op_threads = 1;
  int start_step = -1;
  int stop_step = -1;
  bool smart_stage = true;
};

std::vector<DeclaredPolicy> DeclaredPolicies();  // in the order of engine::Policy
// Parses and checks the parameters of a declared policy.
PolicyValues ParsePolicy(const std::string& name, const std::map<std::string, std::string>& parameters);

}  // namespace engine::detail
