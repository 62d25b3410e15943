/* c_api/plans.h: graphs, plans, and their runs. */
#ifndef ENGINE_C_API_PLANS_H_
#define ENGINE_C_API_PLANS_H_

#include "engine/c_api/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A graph records pushes instead of running them; a plan runs them any number of times, as one op on all their Vars.
 * See graph.h and plan.h. Recorded functions must be able to run more than once, and concurrently with themselves;
 * their deleters run when the graph and its plans are gone. A graph is used by one thread at a time. */
ENGINE_API EngineStatus EngineGraphNew(EngineHandle engine, EngineGraph* graph);
ENGINE_API EngineStatus EngineGraphPush(EngineGraph graph, const EngineOpDesc* op, EngineSyncFn fn, void* param,
                                        EngineDeleter deleter);
ENGINE_API EngineStatus EngineGraphPushAsync(EngineGraph graph, const EngineOpDesc* op, EngineAsyncFn fn, void* param,
                                             EngineDeleter deleter);
/* Op number `before` of the graph (from 0) ends before op number `after` starts. EngineGraphCompile refuses a cycle. */
ENGINE_API EngineStatus EngineGraphOrder(EngineGraph graph, uint32_t before, uint32_t after);
/* `name` may be null. The graph may be used and compiled again. */
ENGINE_API EngineStatus EngineGraphCompile(EngineGraph graph, const char* name, EnginePlan* plan);
/* How a graph is compiled. A field left zero takes its default. */
typedef struct EnginePlanOptions {
  size_t struct_size;
  const char* name;  /* null: "plan" */
  uint32_t flags;    /* ENGINE_PLAN_... */
  uint32_t reserved; /* 0 */
} EnginePlanOptions;
enum {
  /* The memory that the functions work on has the same address in every run. If ops on one GPU lane all have a
   * graph_kind, they are launched as one device graph from the third run on. */
  ENGINE_PLAN_STATIC_ALLOC = 1
};
ENGINE_API EngineStatus EngineGraphCompileWith(EngineGraph graph, const EnginePlanOptions* options, EnginePlan* plan);
ENGINE_API EngineStatus EngineGraphFree(EngineGraph graph);

/* Starts a run and returns at once. A null `policy` means the engine's. Runs overlap as far as their Vars allow. `run`
 * may be null: then the Vars, or EngineWaitAll, tell how the run went. */
ENGINE_API EngineStatus EnginePlanStart(EnginePlan plan, const char* policy, EngineSite site, EngineRun* run);
/* How a run is started. A field left zero takes its default. */
typedef struct EngineRunOptions {
  size_t struct_size;
  const char* policy;       /* a policy's name; null: the engine's */
  EngineCancelScope cancel; /* nodes that have not begun are skipped when it is cancelled; null: none */
  int64_t deadline_ns;      /* nodes that have not begun after so long are skipped with ENGINE_E_DEADLINE; 0: none */
  int32_t has_priority;     /* 0: the run has the highest priority of its nodes */
  int32_t priority;         /* else: of the whole run among ready ops, -2 to 2 */
} EngineRunOptions;
ENGINE_API EngineStatus EnginePlanStartWith(EnginePlan plan, const EngineRunOptions* options, EngineSite site,
                                            EngineRun* run);
/* Describe: one line for each task. Dot: the graph in Graphviz's language. */
ENGINE_API EngineStatus EnginePlanDescribe(EnginePlan plan, char** text);
ENGINE_API EngineStatus EnginePlanDot(EnginePlan plan, char** text);
ENGINE_API EngineStatus EnginePlanFree(EnginePlan plan);
/* Waits until every op of the run has settled. EngineRunWait may run ops of the run meanwhile, on the waiting thread.
 * ENGINE_E_OP if ops failed; the error is that of the failed op that was recorded first. */
ENGINE_API EngineStatus EngineRunWait(EngineRun run, EngineSite site);
ENGINE_API EngineStatus EngineRunWaitFor(EngineRun run, int64_t timeout_ns, EngineSite site);
/* Gives the handle up. The run goes on. */
ENGINE_API EngineStatus EngineRunFree(EngineRun run);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* ENGINE_C_API_PLANS_H_ */
