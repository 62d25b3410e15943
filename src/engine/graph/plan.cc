// The public methods of plans, runs and node contexts.
#include "engine/plan.h"

#include "core/core.h"
#include "graph/plan_core.h"
#include "graph/runs.h"

namespace engine {

using detail::EngineCore;
using WaitKind = EngineCore::WaitKind;

namespace detail {

void ThrowWrongType(const std::type_info& wanted, const std::type_info* held) {
  throw UsageError("a value was asked for as " + TypeText(&wanted) + " and holds " + TypeText(held));
}

}  // namespace detail

// --- NodeContext

NodeContext::NodeContext(EngineCore* core, detail::OpRecord* op, int worker, detail::RunState* run) noexcept
    : RunContext(core, op, worker),
      run_(run),
      values_(run->values),
      input_list_(run->owner->node_inputs.data()),
      output_list_(run->owner->node_outputs.data()) {}
void NodeContext::NoSuchInput(size_t input) const {
  throw UsageError("node '" + std::string(node_->name) + "' asks for input " + std::to_string(input) + " of " +
                   std::to_string(inputs()));
}
void NodeContext::NoSuchOutput(size_t output) const {
  throw UsageError("node '" + std::string(node_->name) + "' sets output " + std::to_string(output) + " of " +
                   std::to_string(outputs()));
}
void NodeContext::WrongInput(size_t input, const std::type_info& wanted) {
  throw UsageError("node '" + std::string(node_->name) + "' takes input " + std::to_string(input) + " as " +
                   detail::TypeText(&wanted) + ", and it holds " + detail::TypeText(In(input).type()));
}
void NodeContext::CheckTake(size_t input) const {
  if (input < inputs() && !run_->owner->single_use[run_->owner->node_inputs[node_->inputs + input]])
    throw UsageError("node '" + std::string(node_->name) + "' may not take input " + std::to_string(input) +
                     ": others use it, or it is an output of the graph; read it with In");
}

// --- Run

namespace {

[[noreturn]] void RefuseEmpty(const std::string& call) {
  throw UsageError(call + " of an empty Run: it was default-made or moved from, or TryStart found no room for it");
}

void AskForEnd(detail::RunState& run) {
  if (run.owner->has_device && !run.in_order) run.core->devices().Ask(run.asked);
}

Value& OutputOf(detail::RunState& run, size_t output, Site site) {
  const auto& outputs = run.owner->graph.outputs();
  if (output >= outputs.size())
    throw UsageError("output " + std::to_string(output) + " of plan " + detail::Quote(run.owner->options.name) +
                     ", which has " + std::to_string(outputs.size()) +
                     (site.line ? ", asked for at " + detail::At(site) : std::string()));
  return run.values[outputs[output].index];
}

}  // namespace

Run::~Run() {
  if (state_) detail::Runs(*state_->core).Drop(*state_);
}
bool Run::done() const {
  if (!state_) RefuseEmpty("done");
  const bool done = detail::Protocol::Settled(state_->done.core());
  if (!done && state_->owner->has_device) state_->core->devices().AskOwners();  // who asks in a loop waits, too
  return done;
}
const Var& Run::var() const {
  if (!state_) RefuseEmpty("var");
  if (!done()) AskForEnd(*state_);  // whoever asks for the Var will wait for it
  return state_->done;
}
void Run::Wait(Site site) {
  if (!state_) RefuseEmpty("Wait at " + detail::At(site));
  // Also right inside an op that reads the run's Var. relaxed: done() has acquired what the run stored.
  if (done() && !state_->done.core()->completer.poison.load(std::memory_order_relaxed)) return;
  if (!done()) {
    detail::Runs(*state_->core).CheckWait(*state_, site);
    AskForEnd(*state_);
    detail::Runs(*state_->core).TakePart(*state_);  // mutant: waiter_takes_no_part
  }
  state_->core->Wait(state_->done, WaitKind::kRead, detail::kNever, site);
}
bool Run::WaitFor(Timeout timeout, Site site) {
  if (!state_) RefuseEmpty("WaitFor at " + detail::At(site));
  if (!done()) {
    detail::Runs(*state_->core).CheckWait(*state_, site);
    AskForEnd(*state_);
  }
  return state_->core->Wait(state_->done, WaitKind::kRead, detail::After(timeout), site);
}
Value* Run::OutputIf(size_t output, Site site) {
  try {
    return &Output(output, site);
  } catch (const OpError&) {
    Value& value = OutputOf(*state_, output, site);
    return value ? &value : nullptr;
  }
}
Value& Run::Output(size_t output, Site site) {
  Wait(site);
  return OutputOf(*state_, output, site);
}

Value* Run::Settled(size_t output) {
  if (!state_) RefuseEmpty("Settled");
  Value& value = OutputOf(*state_, output, {});
  return value ? &value : nullptr;
}

// --- Plan

Plan::Plan(EngineCore& core, const Graph& graph, const PlanOptions& options)
    : core_(std::make_shared<detail::PlanCore>(core, graph, options)) {
  detail::EnlistPlan(core_);
}
Plan Graph::Compile(Engine& eng, const PlanOptions& options) const { return {*eng.core_, *this, options}; }
Plan Graph::Compile(Engine& eng) const { return Compile(eng, PlanOptions()); }

Plan::~Plan() = default;

static constexpr const char* kEmptyPlan = ": it was default-made or moved from; make it with Graph::Compile";

engine::Run Plan::Start(std::span<Value> inputs, const RunOptions& options, Site site) const {
  if (!core_) throw UsageError("Start of an empty Plan at " + detail::At(site) + kEmptyPlan);
  return StartRun(inputs, options, site, true);
}
engine::Run Plan::TryStart(std::span<Value> inputs, const RunOptions& options, Site site) const {
  if (!core_) throw UsageError("TryStart of an empty Plan at " + detail::At(site) + kEmptyPlan);
  return StartRun(inputs, options, site, false);
}

// Under cost_model the plan's model says which schedule this run has, and whether it wants to be told of the run's end.
engine::Run Plan::StartRun(std::span<Value> inputs, const RunOptions& options, Site site, bool may_wait) const {
  EngineCore& core = *core_->core;
  const EngineCore::KeepAlive alive(&core);
  const detail::PolicyStamp stamp = detail::Runs(core).StampOf(options);
  if (!stamp.rules().measures_plans) [[likely]]
    return engine::Run(detail::Runs(core).Start(*core_, inputs, options, stamp, {}, site, may_wait));
  const std::shared_ptr<CostModel> model = cost_model();
  detail::ModelStep step;
  static_cast<CostModel::Step&>(step) = model->Begin(
      *this, {static_cast<uint32_t>(stamp.start_step), static_cast<uint32_t>(stamp.stop_step)}, options.shape);
  if (step.number) step.model = model;
  const Plan& chosen = step.plan ? step.plan : *this;
  detail::RunState* run = nullptr;
  try {
    run = detail::Runs(core).Start(*chosen.core_, inputs, options, stamp, step, site, may_wait);
  } catch (...) {
    if (step.number) model->End(step.number, {});
    throw;
  }
  if (!run && step.number) model->End(step.number, {});  // there was no room
  return engine::Run(run);
}

std::shared_ptr<CostModel> Plan::cost_model() const {
  detail::PlanCore& core = Core("cost_model");
  {
    detail::MutexLock lock(core.model_mu);
    if (core.model) return core.model;
  }
  // Outside the lock, because it takes long and takes locks of its own. If two threads make one, the first stays.
  std::shared_ptr<CostModel> made = CostModel::New(*this, std::max(1, core.core->options().workers));
  detail::MutexLock lock(core.model_mu);
  if (!core.model) core.model = std::move(made);
  return core.model;
}

Plan Plan::With(Schedule schedule) const {
  const detail::PlanCore& core = Core("With");
  PlanOptions changed = core.options;
  changed.schedule = std::move(schedule);
  return {*core.core, core.graph, changed};
}

detail::PlanCore& Plan::Core(const char* call) const {
  if (!core_) throw UsageError(std::string(call) + " of an empty Plan" + kEmptyPlan);
  return *core_;
}
const Graph& Plan::graph() const { return Core("graph").graph; }
const PlanOptions& Plan::options() const { return Core("options").options; }
size_t Plan::edges() const { return Core("edges").successors.size(); }
size_t Plan::counters() const { return Core("counters").counters.size(); }
size_t Plan::frames() const {
  detail::PlanCore& core = Core("frames");
  detail::MutexLock lock(core.frames_mu);
  return core.frames.size();
}

}  // namespace engine
