// SmartStep: profile, cut, guard; and the plans of the parts of a cut step.
#include "engine/spi/smart_step.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <memory>
#include <optional>
#include <string>

#include "base/processors.h"
#include "crossing.h"
#include "partition.h"
#include "stage_lane.h"
#include "staging_guard.h"
#include "step_graph.h"
#include "timed_run.h"

namespace engine {
namespace {

using detail::Cut;

// The cost of an item on both sides: an uncontended hand-over and the start of a run (perf stages: `stream`, 2 µs in
// C++). Values are moved, not copied, so bytes cost nothing here; they only break ties.
constexpr double kHandOver = 2e-6;

// Seconds between two comparisons at least. Opening a stage costs threads: about 0.1 ms, which steps of some microseconds
// would have to pay every few hundred of them.
constexpr double kApart = 0.1;

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
// What all threads of the process have used. Other processes, such as a DataLoader's workers, are not seen.
double ProcessorSeconds() {
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

std::string Text(const char* format, double number) {
  char text[40];
  std::snprintf(text, sizeof text, format, number);
  return text;
}
std::string Millis(double seconds) { return Text("%.4g ms", seconds * 1e3); }

}  // namespace

struct SmartStep::State {
  State(Engine& engine, Graph step, std::vector<ValueId> from_sources, SmartStageOptions given)
      : eng(engine), graph(std::move(step)), sourced(std::move(from_sources)), options(std::move(given)) {}

  struct Level {
    Plan plan;  // empty: the level hands on the values that it gets
    bool serial = false;
  };

  Engine& eng;
  Graph graph;  // with its copy nodes
  std::vector<ValueId> sourced;
  std::vector<bool> copies;  // by node of `graph`: whether it is a copy node; empty: none is
  SmartStageOptions options;
  bool judged = false;  // the exception types of the options apply to staged nodes
  // Of each input of the graph: its place among the sourced ones, or kGiven + its place among the given ones.
  std::vector<size_t> place;
  static constexpr size_t kGiven = size_t{1} << 32;
  size_t givens = 0;

  Plan whole;
  detail::StepGraph costs;
  std::vector<std::vector<double>> samples;  // by node of `costs`
  std::vector<double> between;               // profiled steps: what the caller took for what it does itself
  std::vector<double> busy;                  // profiled steps: how many processors the process kept busy
  int profiled = 0;

  std::optional<Cut> cut;
  std::vector<Level> levels;
  std::vector<ValueId> boundary;  // what the last level gives, and the rest takes first
  Plan rest;
  std::optional<detail::StagingGuard> guard;
  bool scheduled = false;  // what options.schedule said of the next step
  double asked = 0;        // when the next step was asked for; while steps are profiled or compared
  double returned = 0;     // when the last profiled step was over, and what the process had used by then
  double used = 0;
  double compared = 0;      // when the last comparison ended
  detail::BlockBusy block;  // the last block of whole steps that are compared

  void Check() {
    const std::string label = "smart stage '" + options.stage.name + "': ";
    const auto refuse = [&](const std::string& what) { throw UsageError(label + what); };
    if (options.graph && options.graph->nodes().size() != graph.nodes().size())
      refuse("its option graph is another graph than its step's; give the step's, or none");
    if (!options.stage.ordered)
      refuse("ordered is false; steps keep the order of the source, so that results are the same");
    if (sourced.empty()) refuse("no input of the step comes from a source, so there is nothing to run ahead");
    if (options.max_levels < 1)
      refuse("max_levels is " + std::to_string(options.max_levels) + "; at least 1 is expected");
    if (options.profile_steps < 0 || options.guard_steps < 0)
      refuse("profile_steps and guard_steps cannot be negative; 0 leaves them out");
    for (const auto* list : {&options.targets, &options.collectives})
      for (uint32_t n : *list)
        if (n >= graph.nodes().size())
          refuse("node " + std::to_string(n) + " is marked, and the step has " + std::to_string(graph.nodes().size()));
    for (size_t i = 0; i < sourced.size(); ++i) {
      if (std::find(graph.inputs().begin(), graph.inputs().end(), sourced[i]) == graph.inputs().end())
        refuse("a source gives a value that is no input of the step; give what Graph::Input returned");
      if (std::find(sourced.begin(), sourced.begin() + static_cast<ptrdiff_t>(i), sourced[i]) !=
          sourced.begin() + static_cast<ptrdiff_t>(i))
        refuse("two sources give the input '" + std::string(graph.values()[sourced[i].index].name.c_str()) + "'");
    }
    for (ValueId input : graph.inputs()) {
      const auto found = std::find(sourced.begin(), sourced.end(), input);
      place.push_back(found != sourced.end() ? static_cast<size_t>(found - sourced.begin()) : kGiven + givens++);
    }
  }

  void AddCopies() {
    if (!options.arrays) options.arrays = std::make_shared<CrossingArrays>();
    detail::Copying step = detail::WithCopies(graph, options.arrays);
    for (auto* list : {&options.targets, &options.collectives})
      for (uint32_t& n : *list) n = step.nodes[n];
    for (ValueId& value : sourced) value = step.values[value.index];
    copies = std::move(step.copies);
    graph = std::move(step.graph);
  }

  Name PlanName(const std::string& part) const { return Name::Intern(options.stage.name + " " + part); }

  void MakeCut(detail::Choice choice) {
    // The source by its mean: one that reads a block for several items takes long for one of them.
    for (size_t n = 0; n < samples.size(); ++n)
      costs.nodes[n].seconds = n == 0 ? detail::Mean(samples[n]) : detail::Median(samples[n]);
    costs.caller_seconds = detail::Median(between);
    cut = Partition(costs, {.seconds = kHandOver, .threads = options.stage.num_threads}, choice);
    if (cut->staged.empty()) return;
    const size_t nodes = graph.nodes().size();
    const auto levelled = Levels(costs, *cut, options.max_levels);
    std::vector<bool> before(nodes, false), after(nodes, true);
    boundary = sourced;
    const uint8_t lane = detail::LaneOfStage(options.stage.stage_subgraph_stream_id);
    for (const auto& listed : levelled) {
      std::vector<bool> part(nodes, false);
      Level level;
      bool any = false;
      for (uint32_t n : listed) {
        if (n == 0) continue;  // node 0 is the source
        any = part[n - 1] = before[n - 1] = true;
        after[n - 1] = false;
        for (const Effect& e : graph.nodes()[n - 1].effects) level.serial |= e.mode != AccessMode::kRead;
      }
      const auto out = detail::BoundaryValues(graph, sourced, before, after);
      if (any || out != boundary)
        level.plan = detail::PartOf(graph, part, boundary, out, lane).Compile(eng, {.name = PlanName("stage")});
      boundary = out;
      levels.push_back(std::move(level));
    }
    std::vector<bool> copied(nodes, false);
    for (uint32_t n : cut->staged)
      if (costs.nodes[n].copy) copied[n - 1] = before[n - 1] = true, after[n - 1] = false;
    if (std::find(copied.begin(), copied.end(), true) != copied.end()) {
      const auto out = detail::BoundaryValues(graph, sourced, before, after);
      const Graph packed = detail::PackedCopies(graph, copied, boundary, out, options.arrays);
      levels.push_back({.plan = packed.Compile(eng, {.name = PlanName("copy")})});
      boundary = out;
    }
    std::vector<ValueId> in = boundary;
    for (size_t i = 0; i < place.size(); ++i)
      if (place[i] >= kGiven) in.push_back(graph.inputs()[i]);
    rest =
        detail::PartOf(graph, after, in, graph.outputs(), Placement::kAnyLane).Compile(eng, {.name = PlanName("rest")});
    // The buffers of all levels fill first, and each producer has one item.
    const auto ahead = [&](size_t capacity) {
      return (capacity + static_cast<size_t>(options.stage.num_threads)) * levels.size() + 2;
    };
    guard.emplace(ahead(options.stage.capacity), ahead(std::min(options.stage.capacity, detail::kTrialCapacity)),
                  static_cast<size_t>(options.guard_steps), HasRoom(busy));
  }
  // Whether a stage pays beside steps that keep so many processors busy, as far as costs and processors tell.
  bool HasRoom(const std::vector<double>& processors) const {
    return detail::HasRoom(processors, detail::UsableProcessors()) &&
           cut->serial_seconds >= (1 + detail::kWorth) * cut->step_seconds;
  }
  // A step of a block of whole steps is about to be started; `first`: of the block.
  void LookForRoom(bool first) {
    block.Started(first, Now(), ProcessorSeconds());
    if (!first) guard->SetRoom(HasRoom(block.each()));
  }
  // As MakeCut, behind a step that runs already; false without memory for it: nothing is decided then.
  bool CutIfThereIsMemory() {
    try {
      MakeCut(detail::Choice::kBest);
      return true;
    } catch (const std::bad_alloc&) {
      cut.reset();
      levels.clear();
      guard.reset();
      return false;
    }
  }

  void CheckCall(std::span<Value> given, const RunOptions& run) const {
    if (!run.times.empty())
      throw UsageError("RunOptions::times: the nodes of a step of '" + options.stage.name +
                       "' run in several plans; leave it empty");
    if (given.size() != givens)
      throw UsageError("a step of '" + options.stage.name + "' is given " + std::to_string(given.size()) +
                       " inputs; beside what its sources give it takes " + std::to_string(givens));
  }

  // Runs `plan` with the values of `item` and with `given`; if that is refused, both keep their values.
  Run Start(const Plan& plan, StepItem& item, std::span<Value> given, const RunOptions& run, Site site, bool by_place,
            bool may_wait = true) {
    std::vector<Value*> from;
    if (by_place) {
      for (size_t p : place) from.push_back(p >= kGiven ? &given[p - kGiven] : &item.values[p]);
    } else {
      for (Value& value : item.values) from.push_back(&value);
      for (Value& value : given) from.push_back(&value);
    }
    std::vector<Value> inputs(from.size());
    for (size_t i = 0; i < from.size(); ++i) inputs[i] = std::move(*from[i]);
    const auto keep = [&] {
      for (size_t i = 0; i < from.size(); ++i) *from[i] = std::move(inputs[i]);
    };
    try {
      Run started = may_wait ? plan.Start(inputs, run, site) : plan.TryStart(inputs, run, site);
      if (!started) keep();
      return started;
    } catch (...) {
      keep();
      throw;
    }
  }

  // As Start, for an item of which a staged node failed: the values that the node should have made are poisoned with
  // its error.
  Run StartFailed(const Plan& plan, StepItem& item, std::span<Value> given, const RunOptions& run, Site site) {
    NodeDesc desc{.name = "stage", .outputs = static_cast<uint32_t>(item.values.size())};
    std::exception_ptr cause = item.error;
    Site at = site;
    try {
      std::rethrow_exception(cause);
    } catch (const OpError& error) {
      desc.name = Name::Intern(error.op());
      at = error.site();
      cause = error.cause();
    } catch (...) {
    }
    Graph failed;
    const NodeId raise = failed.Add(
        desc, [cause] { std::rethrow_exception(cause); }, at);
    std::vector<ValueId> inputs;
    StepItem good{.number = item.number};
    std::vector<size_t> from;  // by value of `good`: which of the item's it is
    for (ValueId v : plan.graph().inputs()) {
      const size_t i = inputs.size();
      const bool missing = i < item.values.size() && !item.values[i];
      inputs.push_back(missing ? raise[static_cast<uint32_t>(i)] : failed.Input(plan.graph().values()[v.index].name));
      if (i < item.values.size() && !missing) from.push_back(i);
    }
    for (ValueId v : failed.AddGraph(plan.graph(), inputs)) failed.Output(v);
    const Plan compiled = failed.Compile(eng, plan.options());
    good.values.reserve(from.size());
    for (const size_t i : from) good.values.push_back(std::move(item.values[i]));
    const auto keep = [&] {
      for (size_t i = 0; i < from.size(); ++i) item.values[from[i]] = std::move(good.values[i]);
    };
    try {
      Run started = Start(compiled, good, given, run, site, false);
      if (!started) keep();
      return started;
    } catch (...) {
      keep();
      throw;
    }
  }
};

SmartStep::SmartStep(Engine& eng, Graph step, std::vector<ValueId> sourced, SmartStageOptions options)
    : state_(std::make_unique<State>(eng, std::move(step), std::move(sourced), std::move(options))) {
  State& s = *state_;
  s.Check();
  s.options.graph = nullptr;
  if (!s.options.do_smart_stage) s.options.do_smart_stage = eng.policy_choice().options.smart_stage;
  if (s.options.stage_subgraph_on_cpu) s.AddCopies();
  s.judged = !s.options.stage.closed_exception_types.target<detail::IsAnyOf<EndOfData>>() ||
             !s.options.stage.ignored_exception_types.target<detail::IsAnyOf<>>();
  s.whole = s.graph.Compile(eng, {.name = s.PlanName("step")});
  s.costs = detail::ToStepGraph(s.graph, s.sourced, s.copies, s.options);
  s.samples.resize(s.costs.nodes.size());
  if (*s.options.do_smart_stage && (s.judged || s.options.profile_steps == 0)) s.MakeCut(detail::Choice::kLargest);
}

SmartStep::~SmartStep() = default;

SmartStep::Mode SmartStep::mode(bool may_stage) const {
  const State& s = *state_;
  if (!*s.options.do_smart_stage) return Mode::kWhole;
  if (!s.cut) return Mode::kProfile;
  if (s.cut->staged.empty()) return Mode::kWhole;
  if (may_stage && (s.options.schedule ? s.scheduled : s.guard->on())) return Mode::kStaged;
  return s.judged ? Mode::kHalves : Mode::kWhole;
}

bool SmartStep::comparing() const { return state_->guard && !state_->options.schedule && state_->guard->watching(); }
bool SmartStep::trial() const { return comparing() && state_->guard->trial(); }

uint64_t SmartStep::changes() const {
  return static_cast<uint64_t>(state_->profiled) + (state_->guard ? state_->guard->changes() : 0);
}

void SmartStep::Asked(size_t begun) {
  State& s = *state_;
  if (s.options.schedule) s.scheduled = s.options.schedule();
  if (!s.cut || comparing()) s.asked = Now();
  if (!comparing()) return;
  s.guard->Look(begun);
  if (!comparing()) s.compared = s.asked;
}

void SmartStep::Started(const Run& run, Ran ran, double got_seconds) {
  State& s = *state_;
  if (!s.guard || s.options.schedule)
    return;  // whoever gives a schedule compares nothing: the guard would keep all steps
  const auto done = [&](double now) { s.guard->Started(ran, s.asked, now, got_seconds); };
  try {
    detail::StepBlock* block = comparing() ? s.guard->BlockOf(ran) : nullptr;
    if (!block) {
      done(0);
      if (s.guard->due() && Now() - s.compared >= kApart) s.guard->Begin();
      return;
    }
    if (ran == Ran::kWhole) s.LookForRoom(block->started() == 0);
    block->Expect();
    const auto note = [ends = block->ends(), step = block->started()] { ends->Add(step, Now()); };
    // An Operator, because the caller's bulk or capture must not take this op.
    s.eng.Push(s.eng.NewOperator(
        {.name = "end of a step", .reads = {run.var()}, .priority = kMaxPriority, .run_always = true}, note));
    done(Now());
  } catch (...) {
    // The step runs and is the caller's, whatever is refused to its measurement: memory, or any more pushes. One that matters to the
    // program will report it.
    s.guard->Abandon();
  }
}

Run SmartStep::StartWhole(StepItem& item, std::span<Value> given, const RunOptions& options, Site site, bool may_wait) {
  state_->CheckCall(given, options);
  return state_->Start(state_->whole, item, given, options, site, true, may_wait);
}

Run SmartStep::StartRest(StepItem& item, std::span<Value> given, const RunOptions& options, Site site, bool may_wait) {
  State& s = *state_;
  s.CheckCall(given, options);
  if (item.error) return s.StartFailed(s.rest, item, given, options, site);
  return s.Start(s.rest, item, given, options, site, false, may_wait);
}

Run SmartStep::Profile(StepItem& item, std::span<Value> given, const RunOptions& options, double source_seconds,
                       Site site) {
  State& s = *state_;
  Run run;  // outlives what its times are written to
  detail::TimedRun timed(s.eng, s.graph.nodes().size(), run);
  RunOptions with_times = options;
  with_times.times = timed.times();
  s.CheckCall(given, options);
  for (size_t i = 0; i < item.values.size(); ++i) s.costs.values[s.sourced[i].index].bytes = item.values[i].bytes();
  for (detail::Times& sample : s.samples) detail::MakeRoom(sample);  // what follows the start may not fail
  detail::MakeRoom(s.between), detail::MakeRoom(s.busy);
  if (s.profiled > 0) s.between.push_back(std::max(0.0, s.asked - s.returned));
  run = s.Start(s.whole, item, given, with_times, site, true);
  try {
    run.Wait(site);
  } catch (const Error&) {  // whoever waits for the run gets the error
    if (!run.done()) {      // this wait was refused, and says nothing of the run; the next step is profiled instead
      if (s.profiled > 0) s.between.pop_back();
      s.used = ProcessorSeconds(), s.returned = Now();
      timed.KeepForRun();
      return run;
    }
  }
  const std::span<const NodeTime> times = timed.times();
  // Unless there is only one, the first step does not count, because it is slower.
  if (s.profiled > 0 || s.options.profile_steps == 1) {
    s.samples[0].push_back(source_seconds);
    for (size_t n = 0; n < times.size(); ++n) {
      if (times[n].end == 0) continue;  // it was skipped
      s.samples[n + 1].push_back(static_cast<double>(times[n].end - times[n].begin) * 1e-9);
      const Graph::Node& node = s.graph.nodes()[n];
      const uint64_t bytes = s.costs.nodes[n + 1].copy ? s.costs.values[node.inputs[0].index].bytes : times[n].bytes;
      for (ValueId v : node.outputs) s.costs.values[v.index].bytes = bytes / node.outputs.size();
    }
  }
  const double now = Now(), used = ProcessorSeconds();
  if (s.profiled > 0) s.busy.push_back((used - s.used) / (now - s.returned));
  s.used = used;
  if (++s.profiled == s.options.profile_steps && !s.CutIfThereIsMemory())
    --s.profiled;  // the next step is profiled, too
  s.returned = Now();
  return run;
}

size_t SmartStep::levels() const { return state_->levels.size(); }
bool SmartStep::rest_is_empty() const { return state_->rest && state_->rest.graph().nodes().empty(); }
bool SmartStep::serial(size_t level) const { return state_->levels[level].serial; }

void SmartStep::RunLevel(size_t level, StepItem& item) const {
  State& s = *state_;
  const Plan& plan = s.levels[level].plan;
  if (!plan) return;
  // On this thread, which is the stage's own, and not on the engine's workers.
  // The step shows its errors.
  const RunOptions options{.policy = Policy::kInline, .priority = {}, .shows_errors = true};
  const Site site = std::source_location::current();
  Run run = item.error ? s.StartFailed(plan, item, {}, options, site) : plan.Start(item.values, options, site);
  try {
    run.Wait();
  } catch (const OpError& error) {
    if (s.judged && (s.options.stage.closed_exception_types(error.cause()) ||
                     s.options.stage.ignored_exception_types(error.cause())))
      error.RethrowCause();
    item.error = std::current_exception();
  }
  item.values.resize(plan.graph().outputs().size());
  for (size_t i = 0; i < item.values.size(); ++i) {
    Value* made = run.OutputIf(i);
    item.values[i] = made ? std::move(*made) : Value();
  }
}

const SmartStageOptions& SmartStep::options() const { return state_->options; }

SmartStageReport SmartStep::Report() const {
  const State& s = *state_;
  SmartStageReport out;
  out.on = s.options.schedule ? mode() == Mode::kStaged : s.guard && s.guard->staged();
  std::string head = "smart stage '" + s.options.stage.name + "': ";
  if (!*s.options.do_smart_stage) {
    out.decided = true;
    out.text = head + "off (do_smart_stage, or the policy's smart_stage)\n";
    return out;
  }
  if (!s.cut) {
    out.text = head + "step " + std::to_string(s.profiled) + " of " + std::to_string(s.options.profile_steps) +
               " that are timed before the cut\n";
    return out;
  }
  const Cut& cut = *s.cut;
  std::vector<std::string> reasons(s.graph.nodes().size(), "the step is no slower with it");
  for (uint32_t n : cut.staged)
    if (n > 0) reasons[n - 1].clear();
  for (const auto& rejected : cut.rejected)
    if (rejected.node > 0) reasons[rejected.node - 1] = rejected.reason;
  for (size_t n = 0; n < reasons.size(); ++n) {
    out.staged += reasons[n].empty();
    out.nodes.push_back({s.costs.nodes[n + 1].name, std::move(reasons[n])});
  }
  for (ValueId v : s.boundary) out.boundary.push_back({s.costs.values[v.index].name, s.costs.values[v.index].bytes});
  out.levels = s.levels.size();
  out.stage_seconds = cut.stage_seconds;
  out.rest_seconds = cut.main_seconds;
  out.staged_seconds = cut.step_seconds;
  out.whole_seconds = cut.serial_seconds;
  out.decided = !s.guard || s.guard->decided();
  out.text = head + std::to_string(out.staged) + " of " + std::to_string(out.nodes.size()) + " nodes staged, in " +
             std::to_string(out.levels) + (out.levels == 1 ? " level\n" : " levels\n") + detail::Explain(s.costs, cut);
  if (!s.guard) return out;
  out.measured_whole_seconds = s.guard->whole_seconds();
  out.measured_staged_seconds = s.guard->staged_seconds();
  out.comparisons = s.guard->comparisons();
  out.gain = std::expm1(s.guard->gain().gain);
  out.gain_error = s.guard->gain().error;
  out.sure = s.guard->sure();
  const double whole = out.measured_whole_seconds, staged = out.measured_staged_seconds;
  if (s.options.guard_steps == 0) {
    out.text += "staged without a guard: nothing was compared\n";
  } else if (!out.decided) {
    out.text += s.guard->staged() ? "staged, because processors are idle beside a step; being compared"
                                  : "being compared: the first steps run whole and staged by turns";
    if (whole > 0) out.text += "; so far " + Millis(whole) + " a step whole";
    if (staged > 0) out.text += ", " + Millis(staged) + " staged";
    out.text += "\n";
  } else {
    const std::string times = std::to_string(out.comparisons) + (out.comparisons == 1 ? " time" : " times");
    out.text += "measured " + Millis(staged) + " a step staged, " + Millis(whole) + " whole, compared " + times +
                ": staged steps are " + Text("%.1f", std::abs(out.gain) * 100) + " % " +
                (out.gain < 0 ? "slower" : "faster") + ", with an error of " + Text("%.1f", out.gain_error * 100) +
                " %; " + (out.on ? "steps are staged" : "no clear gain, steps run whole") + "; " +
                (out.sure ? "comparing goes on with half a percent of the time\n"
                          : "that is not sure, and compared again soon\n");
  }
  return out;
}

}  // namespace engine
