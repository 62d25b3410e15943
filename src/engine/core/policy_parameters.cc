// The one place where policies and their parameters are declared. C++17, see policy_parameters.h.
#include "core/policy_parameters.h"

#include <dmlc/parameter.h>
#include <dmlc/registry.h>

#include <functional>
#include <stdexcept>
#include <string_view>

namespace engine::detail {

// What is allowed for the parameters that are integers, for dmlc and for messages.
struct ParameterRange {
  std::string_view name;
  int least, most;
};
constexpr ParameterRange kRanges[] = {
    {"intra_op_threads", 1, 255}, {"start_step", -1, kMostSteps}, {"stop_step", -1, kMostSteps}};
constexpr const ParameterRange* RangeOf(std::string_view name) {
  for (const ParameterRange& range : kRanges)
    if (range.name == name) return &range;
  return nullptr;  // no integer
}

// Which of PolicyOptions' fields each policy takes, with range and help. The defaults are those of PolicyOptions.
#define ENGINE_DECLARE_INTEGER(name) \
  DMLC_DECLARE_FIELD(name).set_default(name).set_range(RangeOf(#name)->least, RangeOf(#name)->most)
// What all policies take:
#define ENGINE_DECLARE_COMMON_FIELDS() \
  DMLC_DECLARE_FIELD(smart_stage)      \
      .set_default(smart_stage)        \
      .describe("smart stages that do not say so themselves cut their steps")

struct ThreadedParameters : PolicyOptions, dmlc::Parameter<ThreadedParameters> {
  DMLC_DECLARE_PARAMETER(ThreadedParameters) { ENGINE_DECLARE_COMMON_FIELDS(); }
};

struct InlineParameters : PolicyOptions, dmlc::Parameter<InlineParameters> {
  DMLC_DECLARE_PARAMETER(InlineParameters) {
    ENGINE_DECLARE_INTEGER(intra_op_threads).describe("most threads of one ParallelFor; 1: the calling thread alone");
    ENGINE_DECLARE_COMMON_FIELDS();
  }
};

struct NaiveParameters : PolicyOptions, dmlc::Parameter<NaiveParameters> {
  DMLC_DECLARE_PARAMETER(NaiveParameters) {
    DMLC_DECLARE_FIELD(raise_at_push)
        .set_default(raise_at_push)
        .describe("a failing op throws where it was pushed, and poisons as usual");
    ENGINE_DECLARE_COMMON_FIELDS();
  }
};

struct CostModelParameters : PolicyOptions, dmlc::Parameter<CostModelParameters> {
  DMLC_DECLARE_PARAMETER(CostModelParameters) {
    ENGINE_DECLARE_INTEGER(start_step)
        .describe("first run of a plan that is measured; -1: the engine's, which is 100 unless it was told otherwise");
    ENGINE_DECLARE_INTEGER(stop_step).describe(
        "first run that is not measured any more, more than start_step; -1: the engine's, 200");
    ENGINE_DECLARE_COMMON_FIELDS();
  }
};

DMLC_REGISTER_PARAMETER(ThreadedParameters);
DMLC_REGISTER_PARAMETER(InlineParameters);
DMLC_REGISTER_PARAMETER(NaiveParameters);
DMLC_REGISTER_PARAMETER(CostModelParameters);

using ParseText = std::function<PolicyOptions(const std::map<std::string, std::string>&)>;
struct PolicyEntry : dmlc::FunctionRegEntryBase<PolicyEntry, ParseText> {
  Policy policy = {};
  PolicyEntry& set_policy(Policy one) {
    policy = one;
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
PolicyOptions Parse(const std::map<std::string, std::string>& text) {
  P parameters;
  parameters.Init(text);
  return parameters;
}

#define ENGINE_REGISTER_POLICY(policy, key, Parameters) \
  DMLC_REGISTRY_REGISTER(PolicyEntry, PolicyEntry, key) \
      .set_policy(Policy::policy)                       \
      .set_body(&Parse<Parameters>)                     \
      .add_arguments(Parameters::__FIELDS__())

ENGINE_REGISTER_POLICY(kThreaded, threaded, ThreadedParameters)
    .describe("ready ops go to the pool's workers (the default)");
ENGINE_REGISTER_POLICY(kInline, inline, InlineParameters)
    .describe("everything on the calling thread, for serving: plans run in a precomputed order without queues");
ENGINE_REGISTER_POLICY(kNaive, naive, NaiveParameters)
    .describe("each op runs inside its push once its inputs are done, for debugging");
ENGINE_REGISTER_POLICY(kCostModel, cost_model, CostModelParameters)
    .describe("as threaded, but plans are measured over some runs and then scheduled by their critical path");

const PolicyEntry* Find(Policy policy) {
  for (const PolicyEntry* entry : dmlc::Registry<PolicyEntry>::List())
    if (entry->policy == policy) return entry;
  return nullptr;
}

// What is wrong with a parameter, in our words: dmlc's differ from kind to kind, and one of them has two lines.
std::string WhyRefused(const std::string& name, const std::string& value) {
  const ParameterRange* const range = RangeOf(name);
  return name + " is '" + value + "'; " +
         (range ? "an integer from " + std::to_string(range->least) + " to " + std::to_string(range->most) + " is"
                : "true or false is") +
         " allowed";
}

// As WhyRefused says it: dmlc's text of a truth value ends with the number that it is by default.
std::string TypeText(const dmlc::ParamFieldInfo& field) {
  if (RangeOf(field.name)) return field.type_info_str;
  return field.type_info_str.back() == '1' ? "true or false, default true" : "true or false, default false";
}

}  // namespace

std::vector<PolicyInfo> DeclaredPolicies() {
  std::vector<PolicyInfo> all;
  while (const PolicyEntry* entry = Find(static_cast<Policy>(all.size()))) {
    PolicyInfo declared{entry->policy, entry->name, entry->description, {}};
    for (const dmlc::ParamFieldInfo& field : entry->arguments)
      declared.parameters.push_back({field.name, TypeText(field), field.description});
    all.push_back(declared);
  }
  return all;
}

PolicyOptions ParsePolicy(const std::string& name, const std::map<std::string, std::string>& parameters) {
  const PolicyEntry& policy = *dmlc::Registry<PolicyEntry>::Find(name);
  try {
    return policy.body(parameters);
  } catch (const dmlc::Error& error) {
    for (const auto& [key, value] : parameters) {  // one by one, to learn which it is
      try {
        policy.body({{key, value}});
      } catch (const dmlc::Error&) {
        throw std::invalid_argument(WhyRefused(key, value));
      }
    }
    throw std::invalid_argument(error.what());
  }
}

}  // namespace engine::detail
