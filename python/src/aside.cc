// Aside: runs a plan as one op on a worker, for a caller whose thread has an event loop. The op takes the GIL once, and the
// nodes run in a row, as under `inline`; but the loop goes on meanwhile.
#include <atomic>
#include <utility>
#include <vector>

#include "await.h"
#include "bindings.h"
#include "body.h"
#include "cancel.h"
#include "failure.h"
#include "run.h"
#include "site.h"

namespace nb = nanobind;

namespace engine_python {
namespace {

// How many runs have been pushed and have not begun, and how many keep the workers busy while the loop waits for the next
// results. relaxed: hints (engine/aio.py).
std::atomic<int> runs_waiting{0}, runs_many{0};

struct Waits {
  Waits() noexcept { runs_waiting.fetch_add(1, std::memory_order_relaxed); }
  Waits(Waits&& other) noexcept : counts_(std::exchange(other.counts_, false)) {}
  ~Waits() { End(); }
  void End() noexcept {
    if (std::exchange(counts_, false)) runs_waiting.fetch_sub(1, std::memory_order_relaxed);
  }

 private:
  bool counts_ = true;
};

struct AsideBody {
  PyRef plan;
  PyRef inputs;  // a list
  PyRef made;    // the Value of the only output
  PyRef scope;   // the CancelScope of the call, or null
  // By input: a Var that fails if the Value that is the input has failed, or null. Empty: no input is a Value.
  std::vector<engine::Var> ready;
  Waits waits{};

  void operator()(engine::RunContext& context) {
    BodyPython python;
    waits.End();
    const BodyScope entered(&context);
    DropDeferred();
    // One that has failed fails the nodes that take it, which may not be those that make the output.
    if (!context.error() && !context.cancelled()) ready.clear();
    try {
      SetData(AsValue(made.get()), Output().ptr());
    } catch (nb::python_error& error) {
      error.restore();
      const std::exception_ptr failed = std::make_exception_ptr(PyFailure::Fetch());
      Awaiting(made.get()).EndBehind(failed);
      Drop();
      std::rethrow_exception(failed);
    }
    Awaiting awaiting(made.get());
    Drop();
    if (awaiting) awaiting.End(context);
  }

 private:
  void Drop() {
    plan.Clear();
    inputs.Clear();
    made.Clear();
    scope.Clear();
    ready.clear();
  }
  nb::object Output() {
    const auto& of = *nb::inst_ptr<PyPlan>(plan.get());
    nb::list given;
    for (nb::handle input : nb::handle(inputs.get()))
      given.append(IsValue(input.ptr()) ? nb::steal(DataOf(AsValue(input.ptr()))) : nb::borrow(input));
    std::vector<engine::Var> outputs;
    const RunArguments arguments{.policy = "inline", .cancel = nb::handle(scope.get()), .ready = std::move(ready)};
    PyRun run = StartRun(of, nb::borrow<nb::sequence>(given), arguments, &outputs);
    const StatePtr state = of.engine.lock();
    if (!state) RaiseNoEngine("the plan");
    // The run has most likely ended, and this keeps the GIL. Raises the error of its output and no other node's.
    Translated([&] {
      if (!state->engine.TryWait(outputs[0])) WithoutGil([&] { state->engine.Wait(outputs[0]); });
    });
    return nb::borrow(run.run.Settled(0)->Get<PyRef>().get());
  }
};

// Pushes the op and returns the Value of the plan's only output. None: nothing was pushed, because the policy gives runs
// to workers anyway.
nb::object Aside(nb::handle object, nb::list inputs) {
  const auto& plan = *nb::inst_ptr<PyPlan>(object);
  const StatePtr state = plan.engine.lock();
  if (!state) RaiseNoEngine("the plan");
  {
    const PolicyHere block(state);
    if (engine::UsesWorkers(state->engine.policy())) return nb::none();
  }
  const engine::Site site = CallerSite();
  const engine::Name name = plan.plan.options().name;
  nb::object scope = ScopeFor(nb::none(), {"call", name, site});
  return Translated([&] {
    const engine::PolicyScope threaded = state->engine.EnterPolicy({.policy = engine::Policy::kThreaded});
    const auto push = [&](const engine::OpDesc& desc, auto&& body) {
      if (!state->engine.TryPush(desc, std::move(body), site))
        PushWithoutGil([&] { state->engine.Push(desc, std::move(body), site); });
    };
    std::vector<engine::Var> reads, ready;
    for (size_t i = 0; i < inputs.size(); ++i) {
      nb::object input = inputs[i];
      if (!IsValue(input.ptr())) continue;
      std::vector<engine::Var> of;
      AddVars(input.ptr(), &of);
      ready.resize(inputs.size());
      ready[i] = state->engine.NewVar("argument");
      push({.name = "argument", .reads = of, .writes = ready[i]}, [] {});
      reads.insert(reads.end(), of.begin(), of.end());
      reads.push_back(ready[i]);
    }
    nb::object made = nb::steal(NewValue(state->engine.NewVar(name.c_str()), plan.engine));
    ValueObject* const value = AsValue(made.ptr());
    value->on_workers = true;
    value->fresh = reads.empty() && !scope.is_valid() && state->engine.workers() > 0;
    const engine::VarRef writes[] = {value->var};
    const engine::OpDesc desc{.name = name,
                              .reads = reads,
                              .writes = writes,
                              .run_always = !ready.empty(),
                              .cancel = scope.is_valid() ? nb::inst_ptr<engine::CancelScope>(scope) : nullptr};
    runs_many.store(2 * static_cast<int>(state->engine.workers()), std::memory_order_relaxed);
    push(desc, AsideBody{PyRef::Borrow(object.ptr()), PyRef::Borrow(inputs.ptr()), PyRef::Borrow(made.ptr()),
                         PyRef::Borrow(scope.ptr()), std::move(ready)});
    return made;
  });
}

}  // namespace

void ForgetAsides() noexcept { runs_waiting.store(0, std::memory_order_relaxed); }

void BindAside(nb::module_& m) {
  m.def(
      "_many_runs_wait",
      [] { return runs_waiting.load(std::memory_order_relaxed) > runs_many.load(std::memory_order_relaxed); },
      nb::sig("def _many_runs_wait() -> bool"));
  m.def("_aside", &Aside, nb::arg("plan"), nb::arg("inputs"),
        nb::sig("def _aside(plan: Plan, inputs: list[object]) -> Any"));
}

}  // namespace engine_python
