// Policies by name, their checks, and which one an op is stamped with.
#include "engine/policy.h"

#include <algorithm>
#include <stdexcept>

#include "core/core.h"
#include "core/policy_parameters.h"

namespace engine {
namespace detail {

namespace {

void CheckWindow(int start, int stop) {
  if (start < stop) return;
  throw UsageError("policy 'cost_model': start_step = " + std::to_string(start) +
                   " and stop_step = " + std::to_string(stop) +
                   "; runs in [start_step, stop_step) are measured, so start_step must be less " +
                   "than stop_step (where one is not given it is the engine's: 100 and 200, or what " +
                   "START_NODE_STATS_STEP and STOP_NODE_STATS_STEP say)");
}

}  // namespace

PolicyStamp EngineCore::ScopedStamp() const {
  for (const PolicyScopeLink* scope = t_scopes.policy; scope; scope = scope->outer)
    if (scope->core == this) return scope->stamp;
  return policy_.load(std::memory_order_relaxed);
}

PolicyStamp EngineCore::StampOf(const PolicyChoice& choice) const {
  CheckPolicy(choice);
  PolicyStamp stamp{.policy = choice.policy,
                    .raise = choice.options.raise_at_push,
                    .smart_stage = choice.options.smart_stage,
                    .intra_op = static_cast<uint8_t>(choice.options.intra_op_threads)};
  if (!stamp.rules().measures_plans) return stamp;
  const auto given = [](int value, int otherwise) { return value >= 0 ? value : otherwise; };
  const int start = given(choice.options.start_step, options_.start_step);
  const int stop = given(choice.options.stop_step, options_.stop_step);
  CheckWindow(start, stop);
  stamp.start_step = static_cast<uint64_t>(start);
  stamp.stop_step = static_cast<uint64_t>(stop);
  return stamp;
}

PolicyChoice ChoiceOf(PolicyStamp stamp) {
  PolicyChoice choice{
      stamp.policy,
      {.raise_at_push = stamp.raise, .intra_op_threads = stamp.intra_op, .smart_stage = stamp.smart_stage}};
  if (stamp.rules().measures_plans) {
    choice.options.start_step = static_cast<int>(stamp.start_step);
    choice.options.stop_step = static_cast<int>(stamp.stop_step);
  }
  return choice;
}

}  // namespace detail

namespace {

std::string Names() {
  std::string names;
  for (const PolicyInfo& p : Policies()) names += (names.empty() ? "'" : ", '") + p.name + "'";
  return names;
}

const PolicyInfo& Find(std::string_view name) {
  for (const PolicyInfo& p : Policies())
    if (p.name == name) return p;
  throw UsageError("no policy named '" + std::string(name) + "'; the policies are " + Names());
}

bool Takes(const PolicyInfo& info, const std::string& key) {
  return std::any_of(info.parameters.begin(), info.parameters.end(), [&](const auto& p) { return p.name == key; });
}

}  // namespace

const std::vector<PolicyInfo>& Policies() {
  static const auto* all = [] {  // never destroyed: threads that end after main may ask
    auto* infos = new std::vector<PolicyInfo>;
    for (const detail::DeclaredPolicy& d : detail::DeclaredPolicies()) {
      infos->push_back({static_cast<Policy>(d.policy), d.name, d.help, {}});
      for (const auto& p : d.parameters) infos->back().parameters.push_back({p.name, p.type, p.help});
    }
    return infos;
  }();
  return *all;
}

std::string_view PolicyName(Policy policy) {
  const auto index = static_cast<size_t>(policy);
  if (index >= Policies().size())
    throw UsageError("no policy has the number " + std::to_string(index) + "; the policies are " + Names());
  return Policies()[index].name;
}

Policy PolicyByName(std::string_view name) { return Find(name).policy; }

PolicyChoice MakePolicy(std::string_view name, const std::map<std::string, std::string>& parameters) {
  const PolicyInfo& info = Find(name);
  std::string takes;
  for (const PolicyParameter& p : info.parameters) takes += (takes.empty() ? "" : "; ") + p.name + ": " + p.type;
  for (const auto& [key, value] : parameters) {
    if (Takes(info, key)) continue;
    std::string others;
    for (const PolicyInfo& p : Policies())
      if (Takes(p, key)) others += (others.empty() ? "; of the policies, it belongs to '" : ", '") + p.name + "'";
    throw UsageError("policy '" + info.name + "' has no parameter '" + key + "'; it takes " +
                     (takes.empty() ? "none" : takes) + others);
  }
  try {
    const detail::PolicyValues values = detail::ParsePolicy(info.name, parameters);
    if (values.start_step >= 0 && values.stop_step >= 0) detail::CheckWindow(values.start_step, values.stop_step);
    return {info.policy,
            {.raise_at_push = values.raise_at_push,
             .intra_op_threads = values.intra_op_threads,
             .start_step = values.start_step,
             .stop_step = values.stop_step,
             .smart_stage = values.smart_stage}};
  } catch (const std::invalid_argument& error) {
    throw UsageError("policy '" + info.name + "': " + error.what() + "\nit takes " + takes);
  }
}

void CheckPolicy(const PolicyChoice& choice) {
  const PolicyOptions& o = choice.options;
  std::map<std::string, std::string> text;  // what is not as it is by default
  if (o.raise_at_push) text["raise_at_push"] = "true";
  if (o.intra_op_threads != PolicyOptions().intra_op_threads)
    text["intra_op_threads"] = std::to_string(o.intra_op_threads);
  if (o.start_step != PolicyOptions().start_step) text["start_step"] = std::to_string(o.start_step);
  if (o.stop_step != PolicyOptions().stop_step) text["stop_step"] = std::to_string(o.stop_step);
  if (!o.smart_stage) text["smart_stage"] = "false";
  if (!text.empty()) {
    MakePolicy(PolicyName(choice.policy), text);
  } else {
    PolicyName(choice.policy);
  }
}

PolicyScope::PolicyScope(detail::EngineCore* core, const PolicyChoice& choice)
    : link_{core, core->StampOf(choice), detail::t_scopes.policy} {
  detail::t_scopes.policy = &link_;
}
// Scopes of a thread end in any order: a front end's may be generators.
PolicyScope::~PolicyScope() {
  using Link = detail::PolicyScopeLink;
  detail::Unlink(&detail::PushScopes::policy, &link_, [](Link& link) -> Link*& { return link.outer; });
}

}  // namespace engine
