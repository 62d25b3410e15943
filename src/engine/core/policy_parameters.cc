// Declares all policies and their parameters. Compiled as C++17, see policy_parameters.h.
#include "core/policy_parameters.h"

#include <dmlc/parameter.h>
#include <dmlc/registry.h>

#include <functional>
#include <stdexcept>

namespace engine::detail {

// The parameters that every policy takes.
#define ENGINE_DECLARE_COMMON_FIELDS() \
  DMLC_DECLARE_FIELD(smart_stage)      \
      .set_default(true)               \
      .describe("smart stages that do not say so themselves cut their steps")

struct ThreadedParameters : dmlc::Parameter<ThreadedParameters> {
  bool smart_stage;
  DMLC_DECLARE_PARAMETER(ThreadedParameters) { ENGINE_DECLARE_COMMON_FIELDS(); }
  PolicyValues Values() const { return {false, 1, -1, -1, smart_stage}; }
};

struct InlineParameters : dmlc::Parameter<InlineParameters> {
  int intra_op_threads;
  bool smart_stage;
  DMLC_DECLARE_PARAMETER(InlineParameters) {
    DMLC_DECLARE_FIELD(intra_op_threads)
        .set_default(1)
        .set_range(1, 255)
        .describe("most threads of one ParallelFor; 1: the calling thread alone");
    ENGINE_DECLARE_COMMON_FIELDS();
  }
  PolicyValues Values() const { return {false, intra_op_threads, -1, -1, smart_stage}; }
};

struct NaiveParameters : dmlc::Parameter<NaiveParameters> {
  bool raise_at_push;
  bool smart_stage;
  DMLC_DECLARE_PARAMETER(NaiveParameters) {
    DMLC_DECLARE_FIELD(raise_at_push)
        .set_default(false)
        .describe("a failing op throws where it was pushed, and poisons as usual");
    ENGINE_DECLARE_COMMON_FIELDS();
  }
  PolicyValues Values() const { return {raise_at_push, 1, -1, -1, smart_stage}; }
};

struct CostModelParameters : dmlc::Parameter<CostModelParameters> {
  int start_step;
  int stop_step;
  bool smart_stage;
  DMLC_DECLARE_PARAMETER(CostModelParameters) {
    DMLC_DECLARE_FIELD(start_step)
        .set_default(-1)
        .set_range(-1, (1 << 24) - 1)
        .describe("first run of a plan that is measured; -1: the engine's, which is 100 unless it was told otherwise");
    DMLC_DECLARE_FIELD(stop_step)
        .set_default(-1)
        .set_range(-1, (1 << 24) - 1)
        .describe("first run that is not measured any more, more than start_step; -1: the engine's, 200");
    ENGINE_DECLARE_COMMON_FIELDS();
  }
  PolicyValues Values() const { return {false, 1, start_step, stop_step, smart_stage}; }
};

DMLC_REGISTER_PARAMETER(ThreadedParameters);
DMLC_REGISTER_PARAMETER(InlineParameters);
DMLC_REGISTER_PARAMETER(NaiveParameters);
DMLC_REGISTER_PARAMETER(CostModelParameters);

using ParseText = std::function<PolicyValues(const std::map<std::string, std::string>&)>;
struct PolicyEntry : dmlc::FunctionRegEntryBase<PolicyEntry, ParseText> {
  int policy = 0;
  PolicyEntry& set_policy(int number) {
    policy = number;
    return *this;
  }
};

}  // namespace engine::detail

namespace dmlc {
DMLC_REGISTRY_ENABLE(engine::detail::PolicyEntry);
}  // namespace dmlc

namespace engine::detail {
namespace {

template <class P>
PolicyValues Parse(const std::map<std::string, std::string>& text) {
  P parameters;
  parameters.Init(text);
  return parameters.Values();
}

#define ENGINE_REGISTER_POLICY(number, key, Parameters) \
  DMLC_REGISTRY_REGISTER(PolicyEntry, PolicyEntry, key) \
      .set_policy(number)                               \
      .set_body(&Parse<Parameters>)                     \
      .add_arguments(Parameters::__FIELDS__())

ENGINE_REGISTER_POLICY(0, threaded, ThreadedParameters).describe("ready ops go to the pool's workers (the default)");
ENGINE_REGISTER_POLICY(1, inline, InlineParameters)
    .describe("everything on the calling thread, for serving: plans run in a precomputed order without queues");
ENGINE_REGISTER_POLICY(2, naive, NaiveParameters)
    .describe("each op runs inside its push once its inputs are done, for debugging");
ENGINE_REGISTER_POLICY(3, cost_model, CostModelParameters)
    .describe("as threaded, but plans are measured over some runs and then scheduled by their critical path");

const PolicyEntry* Find(int policy) {
  for (const PolicyEntry* entry : dmlc::Registry<PolicyEntry>::List())
    if (entry->policy == policy) return entry;
  return nullptr;
}

}  // namespace

std::vector<DeclaredPolicy> DeclaredPolicies() {
  std::vector<DeclaredPolicy> all;
  for (int number = 0; const PolicyEntry* entry = Find(number); ++number) {
    DeclaredPolicy declared{number, entry->name, entry->description, {}};
    for (const dmlc::ParamFieldInfo& field : entry->arguments)
      declared.parameters.push_back({field.name, field.type_info_str, field.description});
    all.push_back(declared);
  }
  return all;
}

PolicyValues ParsePolicy(const std::string& name, const std::map<std::string, std::string>& parameters) {
  try {
    return dmlc::Registry<PolicyEntry>::Find(name)->body(parameters);
  } catch (const dmlc::Error& error) {
    throw std::invalid_argument(error.what());
  }
}

}  // namespace engine::detail
