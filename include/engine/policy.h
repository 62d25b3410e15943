// Policy: who runs what, when. A policy changes speed and thread, never results.
//
// A policy governs the default CPU pool only: the I/O, named and copy placements keep their threads.
// It is stamped on an op at its push: the pushing thread's scope (Engine::EnterPolicy), else the engine's (SetPolicy).
// Under `inline` and `naive` an op whose inputs are not done, or that a piece of ParallelFor pushes, is queued, and run by its
// thread's next push, by any thread that waits, or by a drain.
//
// Threads: pure functions.
// Errors:  UsageError for an unknown name, an unknown parameter, a value out of range or a combination that cannot be
//          honoured; it says what is allowed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace engine {

enum class Policy : uint8_t {
  kThreaded,   // ready ops go to the pool's workers
  kInline,     // everything on the calling thread, for serving (DeepRec's inline executor)
  kNaive,      // each op runs inside its push when its inputs are done, for debugging (MXNet's NaiveEngine)
  kCostModel,  // as threaded, but plans are measured, then scheduled by critical path (cost_model.h; DeepRec's)
};

// What a policy decides. A row for each policy: the engine asks the row, and nowhere which policy it is.
struct PolicyRules {
  bool uses_workers = true;     // else the caller runs ops at their push, and plans in a precomputed order
  bool takes_turns = false;     // runs on threads that share a processor come one after another
  bool own_intra_op = false;    // ParallelFor has as many threads as intra_op_threads says, not as many as the pool has
  bool measures_plans = false;  // a run of a plan is what the plan's cost model says
};
// Not in RulesOf: there the table would be built anew at each call, which is at each push.
inline constexpr PolicyRules kRules[] = {
    {},                                                                  // kThreaded
    {.uses_workers = false, .takes_turns = true, .own_intra_op = true},  // kInline
    {.uses_workers = false},                                             // kNaive
    {.measures_plans = true},                                            // kCostModel
};
constexpr const PolicyRules& RulesOf(Policy policy) noexcept { return kRules[static_cast<uint8_t>(policy)]; }
constexpr bool UsesWorkers(Policy policy) noexcept { return RulesOf(policy).uses_workers; }

struct PolicyOptions {
  bool raise_at_push = false;  // naive only: a failing op throws where it was pushed, and poisons as usual
  int intra_op_threads =
      1;  // inline only: most threads of one ParallelFor, 1 to 255; with more than 1, callers share them
  // cost_model only: runs of a plan that are measured, [start_step, stop_step). -1: EngineOptions::start_step, stop_step.
  int start_step = -1;
  int stop_step = -1;
  bool smart_stage = true;  // of all: whether SmartStages that do not say so themselves cut their steps
};

// A policy with its parameters, as `SetPolicy` and scopes take it.
struct PolicyChoice {
  Policy policy = Policy::kThreaded;
  PolicyOptions options = {};
};

// What there is, from the one place where policies and parameters are declared.
struct PolicyParameter {
  std::string name;
  std::string type;  // with its range and default
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
// From text, as front ends have it: MakePolicy("inline", {{"intra_op_threads", "2"}}).
PolicyChoice MakePolicy(std::string_view name, const std::map<std::string, std::string>& parameters = {});
// Throws if the options have what the policy does not take, or a value out of range.
void CheckPolicy(const PolicyChoice& choice);

namespace detail {
class EngineCore;
struct PolicyStamp {  // what is decided at a push; one word, because engines keep theirs in an atomic
  Policy policy : 4 = Policy::kThreaded;
  bool raise : 1 = false;
  bool smart_stage : 1 = true;
  uint8_t intra_op = 1;
  uint64_t start_step : 24 = 0;
  uint64_t stop_step : 24 = 0;
  constexpr const PolicyRules& rules() const noexcept { return RulesOf(policy); }
};
static_assert(sizeof(PolicyStamp) == 8);
inline constexpr int kMostSteps = (1 << 24) - 1;
struct PolicyScopeLink {
  EngineCore* core;
  PolicyStamp stamp;
  PolicyScopeLink* outer;
};
}  // namespace detail

// PolicyScope: the policy of what this thread pushes to one engine, until the guard goes (Engine::EnterPolicy).
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
