// What policies there are and what they take: the declarations, behind plain types.
//
// dmlc-core's parameter.h and registry.h compile as C++17 only, and bring macros named CHECK and LOG: policy_parameters.cc
// is built as C++17 by itself, and nothing of dmlc passes this header.
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
// Parses and checks text by name of the policy, which must be declared.
PolicyValues ParsePolicy(const std::string& name, const std::map<std::string, std::string>& parameters);

}  // namespace engine::detail
