// SmartStage: runs the steps of a program, each with the next item of its sources. The part of a step that does not
// depend on the model runs ahead.
//
//   engine::SmartStage steps(eng, graph, {engine::SourceOf<Rows>("rows", rows, ReadRows)}, {.stage = {.capacity = 4}});
//   while (engine::Run step = steps.Next()) loss = step.Take<float>(0);
//
// A source may be a callable, a plan (PlanSource), or a Stage; the threads of that Stage then run ahead of the
// SmartStage's.
//
// Threads:   Next may be called by num_clients threads at once. The stage's threads call the sources, one at a time and
//            in order; while steps run whole, the thread that calls Next does.
// Ownership: the engine must outlive the SmartStage. A source is called until it ends, also after steps that failed.
// Order:     steps start in the order of their items, whether they are staged or not.
// Errors:    Next throws an exception of a source as it is, after the steps before it and at every later call; or the
//            data ends or the item is skipped, as the options say. An exception of a node fails its step's Run. After
//            Cancel: CancelledError. See spi/smart_step.h.
#pragma once

#include <functional>
#include <optional>

#include "engine/spi/smart_step.h"
#include "engine/stage.h"

namespace engine {

// SmartSource: gives some inputs of each step. `pull` stores their values in order, or returns false at the end of the
// data.
struct SmartSource {
  std::string name;
  std::vector<ValueId> inputs;
  std::function<bool(std::span<Value>)> pull;
};
// A source of one input. next: T() or std::optional<T>().
template <class T, class Next>
SmartSource SourceOf(std::string name, ValueId input, Next next) {
  return {std::move(name), {input}, [next = std::move(next)](std::span<Value> out) mutable {
            auto made = next();
            if constexpr (std::is_same_v<decltype(made), T>) {
              out[0] = std::move(made);
            } else {
              if (!made) return false;
              out[0] = T(std::move(*made));
            }
            return true;
          }};
}
// A source whose items are runs of `plan`, which takes no inputs: the outputs of a run are the values of `inputs`. An
// exception of a node is the exception of the source.
SmartSource PlanSource(std::string name, std::vector<ValueId> inputs, Plan plan);
// The same for a Stage: a callable that returns the plan's only output.
template <class T>
auto ItemsOf(Plan plan) {
  return [pull = PlanSource("ItemsOf", {ValueId{}}, std::move(plan)).pull] {
    Value made;
    pull({&made, 1});
    return made.Take<T>();
  };
}

struct SmartStageStats {
  uint64_t steps = 0;     // started
  uint64_t position = 0;  // items of the sources that are done with; a program that resumes leaves out this many
  uint64_t read = 0;      // items read from the sources
  uint64_t skipped = 0;   // items left out because of an ignored exception
  bool on = false;        // steps are staged now; false: they run whole
  StageStats stage = {};  // of the last level; zeros while steps run whole
};

class SmartStage {
 public:
  SmartStage(Engine& eng, Graph step, std::vector<SmartSource> sources, SmartStageOptions options = {});
  // For a front end that records the step while it sees the first item; see Record.
  SmartStage(Engine& eng, StepPull pull, SmartStageOptions options);
  ~SmartStage();
  SmartStage(const SmartStage&) = delete;

  // Starts the next step. At the end of the data it returns an empty Run, at every later call too. `given`: the inputs
  // that no source gives.
  Run Next(std::span<Value> given = {}, const RunOptions& options = {}, Site site = std::source_location::current());
  // For a SmartStage that was made without a step, before the first Next. Reads the first item, calls `record` and
  // makes the step of what that returns. The first step gets this item; if `record` throws, the next Record gets it.
  // Does nothing if there is a step already. Returns false at the end of the data.
  bool Record(const std::function<RecordedStep()>& record);
  // Ends the SmartStage now: Next throws CancelledError, also where it waits already. Items that were read ahead are
  // dropped.
  void Cancel();

  // The name that the options give, or else a generated one.
  const std::string& name() const;
  SmartStageStats stats() const;
  SmartStageReport Report() const;
  std::string Explain() const { return Report().text; }

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace engine
