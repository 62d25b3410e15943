// Policies: by name, as text, their checks, and which one a push gets.
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
  PolicyStamp stamp{};
  stamp.policy = choice.policy;
#define ENGINE_STAMP(type, name, ...) stamp.name = choice.options.name;
  ENGINE_POLICY_PARAMETERS(ENGINE_STAMP)
#undef ENGINE_STAMP
  stamp.at_push = !stamp.rules().uses_workers;
  if (!stamp.rules().own_intra_op) stamp.intra_op_threads = 0;
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
  PolicyChoice choice{stamp.policy, {}};
#define ENGINE_UNSTAMP(type, name, ...) choice.options.name = static_cast<type>(stamp.name);
  ENGINE_POLICY_PARAMETERS(ENGINE_UNSTAMP)
#undef ENGINE_UNSTAMP
  if (!stamp.rules().own_intra_op) choice.options.intra_op_threads = PolicyOptions().intra_op_threads;
  // The stamp's steps are the engine's where the choice gave none, and they have no bit for "none".
  if (!stamp.rules().measures_plans) choice.options.start_step = choice.options.stop_step = PolicyOptions().start_step;
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

std::string TextOf(bool value) { return value ? "true" : "false"; }
std::string TextOf(int value) { return std::to_string(value); }

std::map<std::string, std::string> NotByDefault(const PolicyOptions& options) {
  const PolicyOptions usual;
  std::map<std::string, std::string> text;
#define ENGINE_TELL_PARAMETER(type, name, ...) \
  if (options.name != usual.name) text[#name] = TextOf(options.name);
  ENGINE_POLICY_PARAMETERS(ENGINE_TELL_PARAMETER)
#undef ENGINE_TELL_PARAMETER
  return text;
}

}  // namespace

const std::vector<PolicyInfo>& Policies() {
  // Never destroyed: threads that end after main may ask.
  static const auto* all = new std::vector<PolicyInfo>(detail::DeclaredPolicies());
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
      if (Takes(p, key)) others += (others.empty() ? " (that is for '" : ", '") + p.name + "'";
    throw UsageError("policy '" + info.name + "' takes no '" + key + "'" + others + (others.empty() ? "" : ")") +
                     "; it takes " + (takes.empty() ? "none" : takes));
  }
  try {
    const PolicyOptions options = detail::ParsePolicy(info.name, parameters);
    if (options.start_step >= 0 && options.stop_step >= 0) detail::CheckWindow(options.start_step, options.stop_step);
    return {info.policy, options};
  } catch (const std::invalid_argument& error) {
    throw UsageError("policy '" + info.name + "': " + error.what());
  }
}

PolicyChoice ParsePolicy(std::string_view text) {
  const std::string_view name = text.substr(0, text.find(':'));
  std::map<std::string, std::string> parameters;
  for (std::string_view rest = text.substr(std::min(name.size() + 1, text.size())); !rest.empty();) {
    const std::string_view one = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(one.size() + 1, rest.size()));
    const size_t equals = one.find('=');
    if (equals == one.npos)
      throw UsageError("policy '" + std::string(text) + "': '" + std::string(one) +
                       "' is no parameter; write NAME:PARAMETER=VALUE,PARAMETER=VALUE");
    if (!parameters.emplace(one.substr(0, equals), one.substr(equals + 1)).second)
      throw UsageError("policy '" + std::string(text) + "' says '" + std::string(one.substr(0, equals)) + "' twice");
  }
  return MakePolicy(name, parameters);
}

std::string PolicyText(const PolicyChoice& choice) {
  std::string text(PolicyName(choice.policy));
  char before = ':';
  for (const auto& [key, value] : NotByDefault(choice.options)) {
    text += before + key + "=" + value;
    before = ',';
  }
  return text;
}

// A policy with default options is checked without allocating, because each start of a run with a policy calls this.
void CheckPolicy(const PolicyChoice& choice) {
  const std::string_view name = PolicyName(choice.policy);
  if (const auto text = NotByDefault(choice.options); !text.empty()) MakePolicy(name, text);
}

PolicyScope::PolicyScope(detail::EngineCore* core, const PolicyChoice& choice)
    : link_{core, core->StampOf(choice), detail::t_scopes.policy} {
  detail::t_scopes.policy = &link_;
}
// The scopes of a thread may end in any order: in Python they may belong to generators.
PolicyScope::~PolicyScope() {
  using Link = detail::PolicyScopeLink;
  detail::Unlink(&detail::PushScopes::policy, &link_, [](Link& link) -> Link*& { return link.outer; });
}

}  // namespace engine
