#include "features.h"

#include <stdexcept>

namespace engine::oracle {

const std::vector<FeatureInfo>& Features() {
  static const std::vector<FeatureInfo> features = {
      {kFail, "fail", "bodies throw, completions fail, are dropped or called twice; run_always", 0},
      {kCancel, "cancel", "pushes under cancel scopes that are cancelled meanwhile", 0},
      {kNest, "nest", "bodies push", 0},
      {kWaitInside, "wait_inside", "bodies wait", 0},
      {kAsync, "async", "asynchronous ops, completed by a foreign thread", 0},
      {kPlaces, "places", "named pools, Io, copy lanes, priorities", 0},
      {kParallel, "parallel", "bodies call ParallelFor", 0},
      {kWide, "wide", "ops over 30 Vars and more, whose blocks are over 1 KiB", 0},
      {kNullErrors, "null_errors", "bodies throw null pointers, and exceptions whose what() is null", 0},
      {kPlans, "plans", "runs of plans beside eager ops on the same Vars", 0},
      {kRunVars, "run_vars", "ops behind runs, by the runs' Vars, while the runs' handles go at any moment", 0},
      {kBulks, "bulks", "bulk scopes and bulk sizes, which hold ops on devices", 0},
      {kHeld, "held", "held ops, released by any thread", 0},
      {kHeldOps, "held_ops", "HeldOps, which hold ops on devices, released by any thread", 0},
      {kOperators, "operators", "operators pushed on several threads", 0},
      {kHeldDeleted, "held_deleted", "held ops that are refused: wide ones over deleted Vars, any beside Shutdown", 0},
      {kHeldWide, "held_wide", "wide ops that shutdown finds held or not completed", 0},
      {kNestPlainScope, "nest_plain_scope", "bodies push without a scope of their own, wherever they run", 0},
      {kPushInPieces, "push_in_pieces", "pieces of a ParallelFor push, and may not wait for their op's Vars", 0},
      {kWaitOutside, "wait_outside", "pushers wait for Vars, runs, and everything", 0},
      {kPolicy, "policy", "policies switched in flight, and scopes of them", 0},
      {kRaise, "raise", "raise_at_push under naive", 0},
      {kDelete, "delete", "Vars deleted beside pushes", 0},
      {kClear, "clear", "ClearError", 0},
      {kTrace, "trace", "StartTrace and StopTrace", 0},
      {kDescribe, "describe", "DescribePending", 0},
      {kStop, "stop", "Stop and Start, by one thread", 0},
      {kStopRaces, "stop_races", "Stop and Start by several threads, and beside Shutdown", 0},
      {kFork, "fork", "forks, whose children use the engine", 0},
      {kForkNames, "fork_names", "children make names", 0},
      {kForkHandles, "fork_handles", "children drop the parent's held ops and call its completions", 0},
      {kForkParallel, "fork_parallel", "children call ParallelFor", 0},
      {kForkDevices, "fork_devices", "forks beside ops on devices, whose children must not find the devices", 0},
      {kForkCollectives, "fork_collectives", "forks beside collectives, whose children drop the communicators", 0},
      {kForkStages, "fork_stages", "forks beside stages, whose children restart the stages", 0},
      {kForkShutdown, "fork_shutdown", "forks beside Shutdown, whose children may find the engine closed", 0},
      {kWaitDeleted, "wait_deleted", "waits for deleted Vars, which must be refused", 0},
      {kTwoEngines, "two_engines", "bodies wait for ops of a second engine without workers", 0},
      {kShutdownBeside, "shutdown_beside", "Shutdown by another thread while pushers push and wait", 0},
      {kLateLanes, "late_lanes", "pushes beside Shutdown are the first to use Io, a copy lane, or a device lane", 0},
      {kOverlapAtEnd, "overlap_at_end", "bodies of ops that the shutdown gives up look at their Vars", 0},
      {kManyWithheld, "many_withheld",
       "any number of completions in a row never come, where shutdown fails one in 20 ms", 0},
      {kLateCompletion, "late_completion", "on_unobserved must not be called once the engine is gone", 0},
      {kLongTimeouts, "long_timeouts", "drain_timeout and stall_timeout of milliseconds::max()", 0},
      {kDevices, "devices", "ops on software devices: lanes and copies", 0},
      {kCollectives, "collectives", "collectives of two ranks in memory", 0},
      {kTightDevices, "tight_devices", "a small max_pending beside devices: a push waits for room as they fall idle",
       0},
      {kTightCollectives, "tight_collectives",
       "a small max_pending beside collectives, which wait for their peers' pushes", 0},
      {kStages, "stages", "stages whose sources push and wait", 0},
      {kNoMemory, "no_memory", "allocations fail inside pushes", 0},
      {kNoThreads, "no_threads", "pthread_create fails", 0},
      {kDeviceNoMemory, "device_no_memory",
       "allocations fail in bodies of ops on devices, behind them, and while device memory is given back", 0},
      {kDeviceNoThreads, "device_no_threads", "pthread_create fails beside devices: their streams get no threads", 0},
      {kCollectiveFaults, "collective_faults",
       "collectives that are refused, fail after they were issued, or hang; then communicators are made anew", 0},
      {kHooksThrow, "hooks_throw", "on_start and on_end throw", 0},
      {kDefer, "defer", "bodies that turn their ops into asynchronous ones", 0},
      {kAwait, "await", "pushers' coroutines co_await Vars", 0},
      {kLateContext, "late_context", "bodies use their RunContext behind their completion", 0},
      {kDestructorsPush, "destructors_push", "closures whose destructors push, also those of skipped and refused ops",
       0},
      {kRunInputs, "run_inputs", "runs whose input has a Var of its own (RunOptions::inputs)", 0},
      {kFewSpares, "few_spares", "hardly any stand-ins, so that waits inside bodies are refused", 0},
      {kRunOutputs, "run_outputs", "ops behind one node of a run, by the Var of its output (RunOptions::outputs)", 0},
      {kPartnerWorkers, "partner_workers", "the second engine has workers", 0},
      {kNoise, "noise", "yields and short sleeps at points that the seed chooses", 0},
  };
  return features;
}

uint64_t AllFeatures() {
  uint64_t all = 0;
  for (const FeatureInfo& f : Features()) all |= f.bit;
  return all;
}

uint64_t KnownBroken() {
  uint64_t broken = 0;
  for (const FeatureInfo& f : Features())
    if (f.finding) broken |= f.bit;
  return broken;
}

namespace {

uint64_t ByName(std::string_view name) {
  if (name == "all") return AllFeatures();
  if (name == "broken") return KnownBroken();
  if (name == "none") return 0;
  for (const FeatureInfo& f : Features())
    if (f.name == name) return f.bit;
  throw std::invalid_argument("no feature '" + std::string(name) + "'; there are: " + FeatureNames(AllFeatures()));
}

}  // namespace

uint64_t ParseFeatures(std::string_view text) {
  uint64_t features = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find(','), text.size());
    std::string_view name = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (name.starts_with('-')) {
      features &= ~ByName(name.substr(1));
    } else if (!name.empty()) {
      features |= ByName(name);
    }
  }
  return features;
}

std::string FeatureNames(uint64_t features) {
  std::string names;
  for (const FeatureInfo& f : Features())
    if (features & f.bit) names += (names.empty() ? "" : ",") + std::string(f.name);
  return names.empty() ? "none" : names;
}

}  // namespace engine::oracle
