/* Asynchronous ops: completions that come early, late, from elsewhere, twice, or never. */
#include "c_test.h"

/* Hands its completion out and returns. */
typedef struct Handed {
  EngineCompletion done;
  Gate gate;
} Handed;

static void HandOut(EngineContext* context, EngineCompletion done, void* param) {
  Handed* handed = param;
  (void)context;
  handed->done = done;
  GateOpen(&handed->gate);
}

static void CompleteAtOnce(EngineContext* context, EngineCompletion done, void* counter) {
  (void)context;
  atomic_fetch_add((atomic_int*)counter, 1);
  OK(EngineCompletionDone(done));
}

static void* CompleteElsewhere(void* param) {
  OK(EngineCompletionDone(((Handed*)param)->done));
  return NULL;
}

TEST(OpEndsWhenItsCompletionIsCalledOnAnotherThread) {
  EngineHandle engine = NewEngine(1);
  EngineVar a = NewVar(engine, "a");
  EngineOpDesc op = Writes("async", &a);
  Handed handed = {NULL, GATE_INIT};
  pthread_t thread;
  OK(EnginePushAsync(engine, &op, HandOut, &handed, NULL));
  GateWait(&handed.gate);
  GIVES(ENGINE_TIMEOUT, EngineWaitFor(engine, a, 1000, ENGINE_HERE));
  CHECK(pthread_create(&thread, NULL, CompleteElsewhere, &handed) == 0);
  OK(EngineWait(engine, a, ENGINE_HERE));
  CHECK(pthread_join(thread, NULL) == 0);
  OK(EngineVarFree(a));
  OK(EngineDestroy(engine));
}

TEST(CompletionMayComeBeforeTheBodyReturns) {
  EngineHandle engine = NewEngine(1);
  EngineVar a = NewVar(engine, "a");
  EngineOpDesc op = Writes("async", &a);
  EngineOperator again = NULL;
  atomic_int runs = 0;
  OK(EnginePushAsync(engine, &op, CompleteAtOnce, &runs, NULL));
  OK(EngineTryPushAsync(engine, &op, CompleteAtOnce, &runs, NULL));
  OK(EngineOperatorNewAsync(engine, &op, CompleteAtOnce, &runs, NULL, &again));
  for (int i = 0; i < 100; ++i) OK(EngineOperatorPush(engine, again, ENGINE_HERE));
  OK(EngineWait(engine, a, ENGINE_HERE));
  CHECK(atomic_load(&runs) == 102);
  OK(EngineOperatorFree(again));
  OK(EngineVarFree(a));
  OK(EngineDestroy(engine));
}

static EngineCompletion Pending(EngineHandle engine, const EngineVar* var) {
  Handed handed = {NULL, GATE_INIT};
  EngineOpDesc op = Writes("async", var);
  OK(EnginePushAsync(engine, &op, HandOut, &handed, NULL));
  GateWait(&handed.gate);
  return handed.done;
}

TEST(FailCarriesItsCodeAndText) {
  EngineHandle engine = NewEngine(1);
  EngineVar a = NewVar(engine, "a");
  OK(EngineCompletionFail(Pending(engine, &a), 404, "no such page"));
  GIVES(ENGINE_E_OP, EngineWait(engine, a, ENGINE_HERE));
  CHECK(EngineGetLastOpError()->cause == ENGINE_E_BODY && EngineGetLastOpError()->code == 404);
  CHECK(strcmp(EngineGetLastOpError()->cause_text, "no such page") == 0);
  OK(EngineCompletionFail(Pending(engine, &a), 500, NULL));
  GIVES(ENGINE_E_OP, EngineWait(engine, a, ENGINE_HERE));
  HAS(EngineGetLastError(), "500");
  OK(EngineVarFree(a));
  OK(EngineDestroy(engine));
}

TEST(DroppedCompletionFailsItsOp) {
  EngineHandle engine = NewEngine(1);
  EngineVar a = NewVar(engine, "a");
  EngineCompletion done = Pending(engine, &a);
  OK(EngineCompletionRetain(done));
  OK(EngineCompletionRelease(done));
  GIVES(ENGINE_TIMEOUT, EngineWaitFor(engine, a, 0, ENGINE_HERE)); /* one reference is left */
  OK(EngineCompletionRelease(done));
  GIVES(ENGINE_E_OP, EngineWait(engine, a, ENGINE_HERE));
  CHECK(EngineGetLastOpError()->cause == ENGINE_E_COMPLETION);
  OK(EngineVarFree(a));
  OK(EngineDestroy(engine));
}

TEST(SecondCallIsAnErrorAndChangesNothing) {
  EngineHandle engine = NewEngine(1);
  EngineVar a = NewVar(engine, "a");
  EngineCompletion done = Pending(engine, &a);
  OK(EngineCompletionRetain(done));
  OK(EngineCompletionRetain(done));
  OK(EngineCompletionDone(done));
  GIVES(ENGINE_E_COMPLETION, EngineCompletionFail(done, 1, "too late"));
  HAS(EngineGetLastError(), "EngineCompletionFail: the completion was called already");
  GIVES(ENGINE_E_COMPLETION, EngineCompletionDone(done));
  GIVES(ENGINE_E_COMPLETION, EngineCompletionDone(done)); /* its last reference is gone */
  HAS(EngineGetLastError(), "used up");
  REFUSED(EngineCompletionRelease(done), "the completion handle is not live");
  REFUSED(EngineCompletionRetain(done), "the completion handle is not live");
  OK(EngineWait(engine, a, ENGINE_HERE));
  OK(EngineVarFree(a));
  OK(EngineDestroy(engine));
}

TEST(CompletionOutlivesItsEngine) {
  EngineConfig config;
  EngineHandle engine = NULL;
  OK(EngineConfigInit(&config, sizeof config));
  config.workers = 1;
  config.drain_timeout_ms = 1;
  OK(EngineCreate(&config, &engine));
  EngineVar a = NewVar(engine, "a");
  EngineCompletion done = Pending(engine, &a);
  OK(EngineDestroy(engine)); /* fails the op after the drain timeout */
  OK(EngineCompletionRetain(done));
  OK(EngineCompletionDone(done)); /* does nothing */
  OK(EngineCompletionRelease(done));
  OK(EngineVarFree(a));
}

typedef struct Fan {
  Gate done;
  atomic_int left;
  EngineCompletion completion;
} Fan;

static void* ReleaseOne(void* param) {
  Fan* fan = param;
  if (atomic_fetch_sub(&fan->left, 1) == 1) {
    OK(EngineCompletionDone(fan->completion));
  } else {
    OK(EngineCompletionRelease(fan->completion));
  }
  return NULL;
}

TEST(ReferencesMayBeGivenUpOnManyThreads) {
  enum { kThreads = 8 };
  EngineHandle engine = NewEngine(1);
  EngineVar a = NewVar(engine, "a");
  pthread_t threads[kThreads];
  Fan fan = {.done = GATE_INIT, .completion = Pending(engine, &a)};
  atomic_store(&fan.left, kThreads);
  for (int i = 1; i < kThreads; ++i) OK(EngineCompletionRetain(fan.completion));
  for (int i = 0; i < kThreads; ++i) CHECK(pthread_create(&threads[i], NULL, ReleaseOne, &fan) == 0);
  for (int i = 0; i < kThreads; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
  OK(EngineWait(engine, a, ENGINE_HERE));
  OK(EngineVarFree(a));
  OK(EngineDestroy(engine));
}

const TestCase kAsyncTests[] = {CASE(OpEndsWhenItsCompletionIsCalledOnAnotherThread),
                                CASE(CompletionMayComeBeforeTheBodyReturns),
                                CASE(FailCarriesItsCodeAndText),
                                CASE(DroppedCompletionFailsItsOp),
                                CASE(SecondCallIsAnErrorAndChangesNothing),
                                CASE(CompletionOutlivesItsEngine),
                                CASE(ReferencesMayBeGivenUpOnManyThreads),
                                {NULL, NULL}};
