/* Graphs and plans: recorded once, run often, errors and refusals. */
#include "c_test.h"

static int32_t AppendName(EngineContext* context, void* text) {
  const char* name = NULL;
  OK(EngineContextName(context, &name));
  strcat(text, name);
  return 0;
}
static int32_t Seven(EngineContext* context, void* fails) {
  if (!*(int*)fails) return 0;
  OK(EngineOpSetError(context, "asked to"));
  return 7;
}
static void CompleteAtOnce(EngineContext* context, EngineCompletion done, void* count) {
  (void)context;
  ++*(int*)count;
  OK(EngineCompletionDone(done));
}

TEST(PlansRunWhatWasRecordedInOrder) {
  EngineHandle engine = NewEngine(2);
  EngineVar a = NewVar(engine, "a");
  EngineGraph graph;
  EnginePlan plan;
  char text[64] = "";
  int completed = 0;
  OK(EngineGraphNew(engine, &graph));
  EngineOpDesc op = {.struct_size = sizeof op, .name = "x", .updates = &a, .num_updates = 1, .site = ENGINE_HERE};
  OK(EngineGraphPush(graph, &op, AppendName, text, NULL));
  op.name = "y";
  OK(EngineGraphPush(graph, &op, AppendName, text, NULL));
  OK(EngineGraphPushAsync(graph, &op, CompleteAtOnce, &completed, NULL));
  OK(EngineGraphCompile(graph, "step", &plan));
  OK(EngineGraphFree(graph));                                    /* the plan has what it needs */
  REFUSED(EnginePlanDescribe(plan, NULL), "the result is null"); /* and makes no text, which nobody could free */
  REFUSED(EnginePlanDot(plan, NULL), "the result is null");
  OK(EnginePlanStart(plan, NULL, ENGINE_HERE, NULL));
  op.name = "e";
  OK(EnginePush(engine, &op, AppendName, text, NULL));
  EngineRun run;
  OK(EnginePlanStart(plan, "inline", ENGINE_HERE, &run));
  OK(EngineRunWait(run, ENGINE_HERE));
  OK(EngineRunWaitFor(run, 0, ENGINE_HERE));
  OK(EngineRunWaitFor(run, INT64_MAX, ENGINE_HERE));
  REFUSED(EngineRunWaitFor(run, -1, ENGINE_HERE), "timeout_ns is -1");
  CHECK(strcmp(text, "xyexy") == 0 && completed == 2);
  char* described = NULL;
  OK(EnginePlanDescribe(plan, &described));
  CHECK(strstr(described, "plan 'step': 3 nodes") != NULL);
  EngineStringFree(described);
  OK(EnginePlanDot(plan, &described));
  CHECK(strstr(described, "digraph") != NULL);
  EngineStringFree(described);
  OK(EngineRunFree(run));
  OK(EnginePlanFree(plan));
  OK(EngineVarFree(a));
  OK(EngineDestroy(engine));
}

TEST(FailedRunsSayWhichOpAndThePlanRunsAgain) {
  EngineHandle engine = NewEngine(1);
  EngineGraph graph;
  EnginePlan plan;
  EngineRun run;
  int fails = 1;
  OK(EngineGraphNew(engine, &graph));
  EngineOpDesc op = {.struct_size = sizeof op, .name = "bad", .site = ENGINE_HERE};
  OK(EngineGraphPush(graph, &op, Seven, &fails, NULL));
  OK(EngineGraphCompile(graph, NULL, &plan));
  OK(EnginePlanStart(plan, NULL, ENGINE_HERE, &run));
  GIVES(ENGINE_E_OP, EngineRunWait(run, ENGINE_HERE));
  CHECK(strcmp(EngineGetLastOpError()->op, "bad") == 0 && EngineGetLastOpError()->code == 7);
  OK(EngineRunFree(run));
  fails = 0;
  OK(EnginePlanStart(plan, NULL, ENGINE_HERE, &run));
  OK(EngineRunWait(run, ENGINE_HERE));
  OK(EngineRunFree(run));
  OK(EnginePlanFree(plan));
  OK(EngineGraphFree(graph));
  OK(EngineDestroy(engine));
}

TEST(RunsTakeAPolicyAScopeADeadlineAndAPriority) {
  EngineHandle engine = NewEngine(1);
  EngineGraph graph;
  EnginePlan plan;
  EngineRun run;
  EngineCancelScope scope;
  int fails = 0;
  OK(EngineGraphNew(engine, &graph));
  EngineOpDesc op = {.struct_size = sizeof op, .name = "node", .site = ENGINE_HERE};
  OK(EngineGraphPush(graph, &op, Seven, &fails, NULL));
  OK(EngineGraphCompile(graph, NULL, &plan));
  EngineRunOptions options = {.struct_size = sizeof options, .policy = "inline", .has_priority = 1, .priority = -2};
  OK(EnginePlanStartWith(plan, &options, ENGINE_HERE, &run));
  OK(EngineRunWait(run, ENGINE_HERE));
  OK(EngineRunFree(run));
  options.deadline_ns = 1; /* over when the node begins */
  OK(EnginePlanStartWith(plan, &options, ENGINE_HERE, &run));
  GIVES(ENGINE_E_OP, EngineRunWait(run, ENGINE_HERE));
  CHECK(EngineGetLastOpError()->cause == ENGINE_E_DEADLINE);
  OK(EngineRunFree(run));
  OK(EngineCancelScopeNew(&scope));
  OK(EngineCancelScopeCancel(scope));
  options = (EngineRunOptions){.struct_size = sizeof options, .cancel = scope};
  OK(EnginePlanStartWith(plan, &options, ENGINE_HERE, &run));
  GIVES(ENGINE_E_OP, EngineRunWait(run, ENGINE_HERE));
  CHECK(EngineGetLastOpError()->cause == ENGINE_E_CANCELLED);
  OK(EngineRunFree(run));
  options = (EngineRunOptions){.struct_size = sizeof options, .deadline_ns = -1};
  REFUSED(EnginePlanStartWith(plan, &options, ENGINE_HERE, &run), "deadline_ns is -1");
  options = (EngineRunOptions){.struct_size = sizeof options, .has_priority = 1, .priority = 3};
  REFUSED(EnginePlanStartWith(plan, &options, ENGINE_HERE, &run), "priority");
  options = (EngineRunOptions){.struct_size = sizeof options, .policy = "fast"};
  REFUSED(EnginePlanStartWith(plan, &options, ENGINE_HERE, &run), "threaded");
  REFUSED(EnginePlanStartWith(plan, NULL, ENGINE_HERE, &run), "the options is null");
  OK(EngineCancelScopeFree(scope));
  OK(EnginePlanFree(plan));
  OK(EngineGraphFree(graph));
  OK(EngineDestroy(engine));
}

TEST(BadGraphCallsAreRefused) {
  EngineHandle engine = NewEngine(1);
  EngineGraph graph;
  EnginePlan plan;
  EngineOpDesc op = {.struct_size = sizeof op, .name = "n"};
  int zero = 0;
  REFUSED(EngineGraphNew(engine, NULL), "null");
  REFUSED(EngineGraphNew(NULL, &graph), "null");
  OK(EngineGraphNew(engine, &graph));
  REFUSED(EngineGraphPush(NULL, &op, Seven, &zero, NULL), "null");
  REFUSED(EngineGraphPush(graph, &op, NULL, &zero, NULL), "null");
  REFUSED(EngineGraphOrder(graph, 0, 1), "not of this graph");
  OK(EngineGraphPush(graph, &op, Seven, &zero, NULL));
  OK(EngineGraphPush(graph, &op, Seven, &zero, NULL));
  OK(EngineGraphOrder(graph, 0, 1));
  OK(EngineGraphCompile(graph, NULL, &plan));
  OK(EngineGraphOrder(graph, 1, 0));
  EnginePlan cyclic;
  REFUSED(EngineGraphCompile(graph, NULL, &cyclic), "cycle");
  REFUSED(EnginePlanStart(plan, "fast", ENGINE_HERE, NULL), "threaded");
  OK(EnginePlanFree(plan));
  REFUSED(EnginePlanStart(plan, NULL, ENGINE_HERE, NULL), "plan");
  REFUSED(EngineRunWait(NULL, ENGINE_HERE), "null");
  OK(EngineGraphFree(graph));
  OK(EngineDestroy(engine));
}

const TestCase kPlanTests[] = {CASE(PlansRunWhatWasRecordedInOrder),
                               CASE(FailedRunsSayWhichOpAndThePlanRunsAgain),
                               CASE(RunsTakeAPolicyAScopeADeadlineAndAPriority),
                               CASE(BadGraphCallsAreRefused),
                               {NULL, NULL}};
