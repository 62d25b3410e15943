// Policy: which thread runs an op, and when. A policy changes speed and threads, never results.
//
// A policy governs the default CPU pool only: ops on the I/O pool, named pools and copy lanes run on the threads of
// those.
// An op gets its policy when it is pushed: that of the pushing thread's scope (Engine::EnterPolicy), or else the
// engine's (SetPolicy). Under `inline` and `naive` an op is queued if its inputs are not done, or if a piece of
// ParallelFor pushes it. A queued op is run by the next push of its thread, by any thread that waits, or by a drain.
//
// Threads: pure functions.
// Errors:  UsageError, which says what is allowed, for an unknown name, an unknown parameter, a value out of range or a
//          combination that cannot be honoured.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace engine {

enum class Policy : uint8_t {
  kThreaded,   // the pool's workers run ready ops
  kInline,     // the calling thread runs everything; for serving (DeepRec's inline executor)
  kNaive,      // each op runs inside its push when its inputs are done, for debugging (MXNet's NaiveEngine)
  kCostModel,  // as threaded, but plans are measured, then scheduled by critical path (spi/cost_model.h; DeepRec's)
};

// PolicyRules: what a policy decides. Each policy has a row; the engine asks the row, and nowhere which policy it is.
struct PolicyRules {
  bool uses_workers = true;     // false: the caller runs ops at their push, and runs of plans in a precomputed order
  bool own_intra_op = false;    // ParallelFor uses intra_op_threads threads; false: as many as its pool has workers
  bool measures_plans = false;  // the plan's cost model chooses how a run of the plan goes
};
// Not in RulesOf: there the table would be built anew at each call, which is at each push.
inline constexpr PolicyRules kRules[] = {
    {},                                             // kThreaded
    {.uses_workers = false, .own_intra_op = true},  // kInline
    {.uses_workers = false},                        // kNaive
    {.measures_plans = true},                       // kCostModel
};
constexpr const PolicyRules& RulesOf(Policy policy) noexcept { return kRules[static_cast<uint8_t>(policy)]; }
constexpr bool UsesWorkers(Policy policy) noexcept { return RulesOf(policy).uses_workers; }

// The parameters of all policies, a row each: type, name, default, then type and bits of the field that keeps it for a
// push. From these rows come PolicyOptions, PolicyStamp, the text of a policy (core/policy.cc) and what Python's
// set_policy returns. Which policy takes a parameter, with which range, core/policy_parameters.cc says.
//   raise_at_push           naive: the push of an op that fails throws; the op poisons its Vars as usual
//   intra_op_threads        inline: most threads of a ParallelFor, 1 to 255; above 1 all callers share them
//   start_step, stop_step   cost_model: the runs [start_step, stop_step) of a plan are measured; -1: what EngineOptions
//                           says
//   smart_stage             all policies: whether SmartStages cut their steps if their own options do not say
// clang-format off
#define ENGINE_POLICY_PARAMETERS(X)                                                                                    \
  X(bool, raise_at_push, false, bool, 1)                                                                               \
  X(int, intra_op_threads, 1, uint64_t, 8)                                                                             \
  X(int, start_step, -1, uint64_t, 24)                                                                                 \
  X(int, stop_step, -1, uint64_t, 24)                                                                                  \
  X(bool, smart_stage, true, bool, 1)
// clang-format on

struct PolicyOptions {
#define ENGINE_POLICY_OPTION(type, name, initial, ...) type name = initial;
  ENGINE_POLICY_PARAMETERS(ENGINE_POLICY_OPTION)
#undef ENGINE_POLICY_OPTION
};

// A policy with its parameters, as `SetPolicy` and scopes take it.
struct PolicyChoice {
  Policy policy = Policy::kThreaded;
  PolicyOptions options = {};
};

// What policies and parameters there are, from the one place that declares them.
struct PolicyParameter {
  std::string name;
  std::string type;  // with the range and the default
  std::string help;
};
struct PolicyInfo {
  Policy policy;
  std::string name;
  std::string help;
  std::vector<PolicyParameter> parameters;
};
const std::vector<PolicyInfo>& Policies();
std::string_view PolicyName(Policy policy);
Policy PolicyByName(std::string_view name);
// Makes a policy from text, for front ends: MakePolicy("inline", {{"intra_op_threads", "2"}}).
PolicyChoice MakePolicy(std::string_view name, const std::map<std::string, std::string>& parameters = {});
// One line of text, "inline" or "inline:intra_op_threads=2,smart_stage=false", and back: parameters that are as by default are
// left out.
PolicyChoice ParsePolicy(std::string_view text);
std::string PolicyText(const PolicyChoice& choice);
// UsageError if the options set something that the policy does not have, or a value out of range.
void CheckPolicy(const PolicyChoice& choice);

namespace detail {
class EngineCore;
// What a push gets from its policy: one word, because each engine keeps its own in an atomic. A push asks no table for
// what it needs: at_push is uses_workers of the rules, negated, and intra_op_threads is 0 without own_intra_op.
struct PolicyStamp {
  Policy policy : 4;
  bool at_push : 1;
#define ENGINE_STAMP_FIELD(type, name, initial, kept, bits) kept name : bits;
  ENGINE_POLICY_PARAMETERS(ENGINE_STAMP_FIELD)
#undef ENGINE_STAMP_FIELD
  constexpr const PolicyRules& rules() const noexcept { return RulesOf(policy); }
};
static_assert(sizeof(PolicyStamp) == 8);
inline constexpr int kMostSteps = (1 << 24) - 1;
inline constexpr int kMostPolicies = 1 << 4;  // PolicyStamp::policy
static_assert(sizeof kRules / sizeof kRules[0] <= kMostPolicies);
struct PolicyScopeLink {
  EngineCore* core;
  PolicyStamp stamp;
  PolicyScopeLink* outer;
};
}  // namespace detail

// PolicyScope: the policy of what this thread pushes to one engine, until the scope is destroyed (Engine::EnterPolicy).
class PolicyScope {
 public:
  PolicyScope(const PolicyScope&) = delete;
  PolicyScope& operator=(const PolicyScope&) = delete;
  ~PolicyScope();

 private:
  friend class Engine;
  PolicyScope(detail::EngineCore* core, const PolicyChoice& choice);
  detail::PolicyScopeLink link_;
};

}  // namespace engine
