// Graphs, plans and runs in the C API; ops.cc records the ops.
#include "c_api/internal.h"

using namespace engine::capi;  // NOLINT: this file defines its C face
using engine::UsageError;

namespace {

void Compile(EngineGraph graph, const EnginePlanOptions& given, EnginePlan* plan) {
  EnginePlan& result = Required(plan, "the result");
  const GraphSlot& slot = Live(graph);
  if (const uint32_t unknown = (given.flags & ~uint32_t{ENGINE_PLAN_STATIC_ALLOC}) | given.reserved)
    throw UsageError("EnginePlanOptions: unknown flags " + std::to_string(unknown) +
                     "; ENGINE_PLAN_STATIC_ALLOC is allowed, and the reserved field is 0");
  engine::PlanOptions options;
  if (given.name) options.name = InternText(given.name);
  options.static_alloc = given.flags & ENGINE_PLAN_STATIC_ALLOC;
  result = NewHandle<EnginePlan>(slot.graph.Compile(Live(slot.engine), options));
}

void Start(EnginePlan plan, const EngineRunOptions& given, EngineSite site, EngineRun* run) {
  const engine::Plan live = Live(plan);  // counted: the handle may be freed meanwhile
  engine::RunOptions options;
  if (given.policy) options.policy = engine::PolicyByName(given.policy);
  if (given.cancel) options.cancel = &Live(given.cancel);
  if (NotNegative(given.deadline_ns, "deadline_ns") > 0)
    options.deadline = std::chrono::steady_clock::now() + std::chrono::nanoseconds(given.deadline_ns);
  if (given.has_priority) options.priority = given.priority;
  engine::Run started = live.Start({}, options, ToSite(site));
  if (run) *run = NewHandle<EngineRun>(std::move(started));
}

}  // namespace

EngineStatus EngineGraphNew(EngineHandle engine, EngineGraph* graph) {
  return ToStatus(__func__, [&] {
    EngineGraph& result = Required(graph, "the result");
    Live(engine);
    result = NewHandle<EngineGraph>(engine);
  });
}

EngineStatus EngineGraphOrder(EngineGraph graph, uint32_t before, uint32_t after) {
  return ToStatus(__func__, [&] { Live(graph).graph.Order({before, 0, 0}, {after, 0, 0}); });
}

EngineStatus EngineGraphCompile(EngineGraph graph, const char* name, EnginePlan* plan) {
  return ToStatus(__func__, [&] {
    EnginePlanOptions options{};
    options.name = name;
    Compile(graph, options, plan);
  });
}

EngineStatus EngineGraphCompileWith(EngineGraph graph, const EnginePlanOptions* options, EnginePlan* plan) {
  return ToStatus(__func__, [&] {
    EnginePlanOptions given{};
    ReadStruct(Required(options, "the options"), given, "EnginePlanOptions");
    Compile(graph, given, plan);
  });
}

EngineStatus EngineGraphFree(EngineGraph graph) { return Free(__func__, graph); }

EngineStatus EnginePlanStart(EnginePlan plan, const char* policy, EngineSite site, EngineRun* run) {
  return ToStatus(__func__, [&] {
    EngineRunOptions options{};
    options.policy = policy;
    Start(plan, options, site, run);
  });
}

EngineStatus EnginePlanStartWith(EnginePlan plan, const EngineRunOptions* options, EngineSite site, EngineRun* run) {
  return ToStatus(__func__, [&] {
    EngineRunOptions given{};
    ReadStruct(Required(options, "the options"), given, "EngineRunOptions");
    Start(plan, given, site, run);
  });
}

EngineStatus EnginePlanDescribe(EnginePlan plan, char** text) {
  return ToStatus(__func__, [&] {
    char*& result = Required(text, "the result");
    result = NewText(Live(plan).Describe());
  });
}
EngineStatus EnginePlanDot(EnginePlan plan, char** text) {
  return ToStatus(__func__, [&] {
    char*& result = Required(text, "the result");
    result = NewText(Live(plan).Dot());
  });
}
EngineStatus EnginePlanFree(EnginePlan plan) { return Free(__func__, plan); }

EngineStatus EngineRunWait(EngineRun run, EngineSite site) {
  return ToStatus(__func__, [&] { Live(run).Wait(ToSite(site)); });
}
EngineStatus EngineRunWaitFor(EngineRun run, int64_t timeout_ns, EngineSite site) {
  return ToStatus(
      __func__, [&] { return Live(run).WaitFor(ReadTimeout(timeout_ns), ToSite(site)) ? ENGINE_OK : ENGINE_TIMEOUT; });
}
EngineStatus EngineRunFree(EngineRun run) { return Free(__func__, run); }
