// SmartStage: the steps of a program, each with the next item of its sources; the part that may run ahead does so.
//
//   engine::SmartStage steps(eng, graph, {engine::SourceOf<Rows>("rows", rows, ReadRows)}, {.stage = {.capacity = 4}});
//   while (engine::Run step = steps.Next()) loss = step.Take<float>(0);
//
// A source may be a callable, a plan (PlanSource), or a Stage, which is then a level of its own in front.
//
// Threads:   Next on num_clients threads. Sources run on the stage's threads, one at a time and in order; while steps are
//            run whole, on the thread that calls Next.
// Ownership: the engine must outlive it. A source is called until it ends, also after errors of steps.
// Order:     steps start in the order of their items, whether they are staged or not.
// Errors:    what a source throws comes out of Next as itself, after the steps before it, as often as asked, or ends or
//            skips as the options say. What a node throws fails its step's Run. Cancel: CancelledError. See smart_step.h.
#pragma once

#include <functional>
#include <optional>

#include "engine/spi/smart_step.h"
#include "engine/stage.h"

namespace engine {

// What gives some inputs of a step: `pull` puts their values in order, or returns false at the end.
struct SmartSource {
  std::string name;
  std::vector<ValueId> inputs;
  std::function<bool(std::span<Value>)> pull;
};
// next: T() or std::optional<T>(), for one input.
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
// Each run of `plan`, which takes no inputs, gives an item: its outputs are `inputs`. What a node throws is what the source
// throws.
SmartSource PlanSource(std::string name, std::vector<ValueId> inputs, Plan plan);
// The same for a Stage by hand: a callable that gives the plan's one output.
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
  uint64_t position = 0;  // items of the sources that are done with: what a resumed program has to leave out
  uint64_t read = 0;      // items read from the sources
  uint64_t skipped = 0;   // items left out because of an ignored exception
  bool on = false;        // steps are staged now
  StageStats stage = {};  // of the last level, while they are
};

class SmartStage {
 public:
  SmartStage(Engine& eng, Graph step, std::vector<SmartSource> sources, SmartStageOptions options = {});
  // For a front end that records the step by its first item; see Record.
  SmartStage(Engine& eng, StepPull pull, SmartStageOptions options);
  ~SmartStage();
  SmartStage(const SmartStage&) = delete;

  // Starts the next step; an empty Run at the end of the data, as often as asked. `given`: the inputs that no source gives.
  Run Next(std::span<Value> given = {}, const RunOptions& options = {}, Site site = std::source_location::current());
  // Before the first Next of a stage that was made without a step: reads the first item, and makes the step of what `record`
  // returns. The first step gets that item, and if `record` throws, the next Record. Nothing, if there is a step. False: the
  // data has ended.
  bool Record(const std::function<RecordedStep()>& record);
  // Ends now: Next throws CancelledError, also where it waits. What was read ahead is thrown away.
  void Cancel();

  // As the options say; one that was generated, if they say none.
  const std::string& name() const;
  SmartStageStats stats() const;
  SmartStageReport Report() const;
  std::string Explain() const { return Report().text; }

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace engine
