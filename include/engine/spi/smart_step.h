// SmartStep: a step that is cut in two, so that the part that does not depend on the model may run ahead of the rest.
// SmartStep decides how steps run; SmartStage (smart_stage.h), or a front end, has the threads.
//
//   profile   the first steps run whole, and each node is timed
//   cut       the legal cut whose slower side is fastest (src/stage/partition.h); if none pays, steps stay whole
//   guard     the next steps run whole and staged by turns; steps are staged if that is faster, or, where a processor is
//             idle beside a step, if that is not slower. Half a percent of the time goes on into comparing, so that the
//             decision follows the program and the machine
//
// A step's graph has inputs that the sources give for each item, and inputs that the caller gives to each step. Staged
// nodes run level by level on the thread that calls RunLevel; the other nodes are a run of their own, the rest. Values
// that both sides need are handed over. Outputs of the step that staged nodes make pass through the rest unchanged.
//
// Threads:   RunLevel may be called by any number of threads; if a level is `serial`, for one item after the other, by
//            their numbers. The other calls come one at a time, and for an item only after its RunLevels have returned.
// Ownership: the engine must outlive the SmartStep. A StepItem belongs to whoever holds it.
// Order:     the effects of the steps are those of whole steps in order: if a staged node and the rest share a Var,
//            neither changes it. If other code changes a Var that staged nodes read, it changes that Var for steps that
//            were read ahead.
// Errors:    UsageError for a graph or options that cannot be honoured. A staged node that fails fails its step as it
//            would without a stage, and the next steps go on; see `closed_exception_types` below.
// Source:    DeepRec's SmartStage; reasons, costs and the guard are added.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/device/array.h"
#include "engine/plan.h"
#include "engine/stage_options.h"

namespace engine {

struct SmartStageOptions {
  // As for a Stage. closed_exception_types and ignored_exception_types apply to sources. If either is changed from its
  // default, both apply to staged nodes too; every node that may be staged is staged then, so that the types mean the
  // same in each step.
  StageOptions stage = {};
  const Graph* graph = nullptr;             // the graph of the step, to check that it is the expected one, or null
  std::optional<bool> do_smart_stage = {};  // false: every step runs whole; none: as PolicyOptions::smart_stage says
  // Nodes on a GPU stay in the step, and the values that they take from the host are copied to the device: each
  // HostArray arrives there as a DeviceArray, however the steps run. The copies of staged values are staged too, as one
  // copy from pinned memory for each item.
  bool stage_subgraph_on_cpu = false;
  std::shared_ptr<const CrossingArrays> arrays = {};  // a front end's own (array.h); null: only HostArray is known
  std::vector<uint32_t> targets = {};                 // nodes that must stay in the step (mark_target_node)
  // Nodes that every process runs in the same order; they stay in the step.
  std::vector<uint32_t> collectives = {};
  // Vars that only input work uses: a random state, a counter, a vocabulary. Nodes that change other Vars stay in the
  // step, because code that looks at a Var between two steps must find what these steps left there.
  std::vector<Var> input_state = {};
  int max_levels = 1;     // how many stages may stand one behind the other, each with its own threads
  int profile_steps = 8;  // how many steps are timed before the cut
  // How many steps the first comparison has, of a caller that waits for its steps; 0: steps are staged without one.
  int guard_steps = 16;
  // For tests: asked before each step whether it is staged, in place of the guard.
  std::function<bool()> schedule = {};
};

// What the sources gave for one step, on its way to that step.
struct StepItem {
  std::vector<Value> values = {};
  std::exception_ptr error = {};  // what a staged node threw
  uint64_t number = 0;            // number of the item in the source, from 0
  // Of the values; counted only where StageOptions::capacity_bytes bounds them, because Python's lock is needed to ask Python.
  size_t counted = 0;
  size_t bytes() const { return counted; }
};

// Stores the values of the next item, in the order in which a step takes them; returns false at the end of the data. It
// is called by one thread at a time, item after item.
using StepPull = std::function<bool(std::vector<Value>* values)>;

// A step that a front end has recorded while it saw the first item.
struct RecordedStep {
  Graph graph = {};
  std::vector<ValueId> sourced = {};   // the step's inputs that the items give, in the order of the items' values
  std::vector<uint32_t> targets = {};  // see SmartStageOptions
};

// What SmartStep decided, and why.
struct SmartStageReport {
  struct Node {
    std::string name;
    std::string reason;  // why the node is not staged; empty: it is staged
  };
  struct Boundary {
    std::string name;
    uint64_t bytes;
  };
  std::vector<Node> nodes = {};
  std::vector<Boundary> boundary = {};
  size_t staged = 0;  // number of staged nodes
  size_t levels = 0;
  // Seconds for a step, as the profile predicts them; 0 before the profile. What the caller does itself between two steps is
  // part of the rest.
  double stage_seconds = 0, rest_seconds = 0, staged_seconds = 0, whole_seconds = 0;
  // Seconds for a step, as the guard measured them; 0 before that.
  double measured_staged_seconds = 0, measured_whole_seconds = 0;
  // How much faster steps are staged, as a share (0.1: ten percent), and the standard error of that, by the guard's last
  // comparisons.
  double gain = 0, gain_error = 0;
  uint64_t comparisons = 0;  // how many the guard has made
  bool decided = false;      // the first comparison is over, or there is none; later ones may change the decision
  bool sure = false;         // the comparisons leave no doubt; while they do, they come sooner
  bool on = false;           // steps are staged, but for those that compare
  std::string text = {};
};

class SmartStep {
 public:
  // `sourced`: the inputs of `step` that its sources give, in the order of StepItem::values. `options.stage` has been
  // checked by a StagingArea.
  SmartStep(Engine& eng, Graph step, std::vector<ValueId> sourced, SmartStageOptions options);
  ~SmartStep();
  SmartStep(const SmartStep&) = delete;

  enum class Mode : uint8_t { kProfile, kWhole, kHalves, kStaged };
  // How the next step must run. kProfile: by Profile. kWhole: by StartWhole. kHalves: by RunLevel for each level, then
  // StartRest. kStaged: the same, with the levels run ahead.
  // `may_stage` false: it must not be kStaged, because the caller has no stage now.
  Mode mode(bool may_stage = true) const;
  // For the guard. Call Asked when a step is asked for, with how many items the stage has begun that were not taken; mode()
  // may change then. Call Started with each run, how the step was run, and how long it took to get its item. While steps
  // are compared, Started pushes an op behind the run that notes when the run ends; nobody waits for it.
  enum class Ran : uint8_t { kWhole, kStaged, kDrained };  // kDrained: staged, when the stage had been closed already
  void Asked(size_t begun = 0);
  void Started(const Run& run, Ran ran, double got_seconds);
  bool comparing() const;  // false: Started pushes nothing
  // Whether a stage that is opened now is only tried, so that it should not have many items ready.
  bool trial() const;
  // Grows when Report has something new to say.
  uint64_t changes() const;

  // `given`: the inputs that no source gives, in the graph's order. If a call is refused, `item` and `given` keep their
  // values. `may_wait` false: as Plan::TryStart, an empty Run where the call would wait, and `item` and `given` keep
  // their values.
  Run StartWhole(StepItem& item, std::span<Value> given, const RunOptions& options, Site site, bool may_wait = true);
  Run StartRest(StepItem& item, std::span<Value> given, const RunOptions& options, Site site, bool may_wait = true);
  // As StartWhole, and waits for the run. `source_seconds`: how long it took to read the item.
  Run Profile(StepItem& item, std::span<Value> given, const RunOptions& options, double source_seconds, Site site);

  size_t levels() const;
  bool rest_is_empty() const;       // whether StartRest runs no node: the levels do all
  bool serial(size_t level) const;  // whether the level changes Vars
  // Throws what a staged node threw, if the exception types of the options apply to staged nodes and cover it.
  void RunLevel(size_t level, StepItem& item) const;

  const SmartStageOptions& options() const;
  SmartStageReport Report() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace engine
