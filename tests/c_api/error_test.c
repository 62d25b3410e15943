/* Failures: what a wait says, what poison does, timeouts, refused waits, cancel scopes. */
#include "c_test.h"

TEST(WaitTellsWhichOpFailedWhereAndThroughWhich) {
  EngineHandle engine = NewEngine(1);
  EngineVar a = NewVar(engine, "a"), b = NewVar(engine, "b"), c = NewVar(engine, "c");
  EngineOpDesc fail = Writes("fail", &a), middle = Writes("middle", &b), last = Writes("last", &c);
  fail.site.file = "model.c", fail.site.line = 11;
  middle.site.file = "model.c", middle.site.line = 22, middle.reads = &a, middle.num_reads = 1;
  last.reads = &b, last.num_reads = 1;
  OK(EnginePush(engine, &fail, FailWith7, NULL, NULL));
  OK(EnginePush(engine, &middle, DoNothing, NULL, NULL));
  OK(EnginePush(engine, &last, DoNothing, NULL, NULL));
  for (int times = 0; times < 2; ++times) { /* as often as asked */
    GIVES(ENGINE_E_OP, EngineWait(engine, c, ENGINE_HERE));
    const EngineOpError* error = EngineGetLastOpError();
    CHECK(error && error->struct_size >= sizeof *error);
    CHECK(strcmp(error->op, "fail") == 0 && strcmp(error->site.file, "model.c") == 0 && error->site.line == 11);
    CHECK(error->cause == ENGINE_E_BODY && error->code == 7);
    CHECK(strcmp(error->cause_text, "no seven today") == 0);
    CHECK(error->num_hops == 2);
    CHECK(strcmp(error->hops[0].op, "middle") == 0 && error->hops[0].site.line == 22);
    CHECK(strcmp(error->hops[1].op, "last") == 0);
    CHECK(strcmp(error->text, EngineGetLastError()) == 0);
    HAS(error->text, "model.c:11");
  }
  REFUSED(EngineWait(engine, NULL, ENGINE_HERE), "null");
  CHECK(EngineGetLastOpError() == NULL); /* the last error is another one */
  OK(EngineVarFree(a));
  OK(EngineVarFree(b));
  OK(EngineVarFree(c));
  OK(EngineDestroy(engine));
}

static int32_t FailSilently(EngineContext* context, void* param) {
  (void)context, (void)param;
  return -3;
}

TEST(NonzeroStatusWithoutATextIsNamed) {
  EngineHandle engine = NewEngine(1);
  EngineVar a = NewVar(engine, "a");
  EngineOpDesc op = Writes("silent", &a);
  OK(EnginePush(engine, &op, FailSilently, NULL, NULL));
  GIVES(ENGINE_E_OP, EngineWait(engine, a, ENGINE_HERE));
  CHECK(EngineGetLastOpError()->code == -3);
  HAS(EngineGetLastError(), "status -3");
  OK(EngineVarFree(a));
  OK(EngineDestroy(engine));
}

static int32_t SetErrorAndSucceed(EngineContext* context, void* param) {
  (void)param;
  REFUSED(EngineOpSetError(context, NULL), "the message is null");
  OK(EngineOpSetError(context, "never mind"));
  return 0;
}

TEST(TextWithoutANonzeroStatusIsNoFailure) {
  EngineHandle engine = NewEngine(1);
  EngineVar a = NewVar(engine, "a");
  EngineOpDesc op = Writes("fine", &a);
  OK(EnginePush(engine, &op, SetErrorAndSucceed, NULL, NULL));
  OK(EngineWait(engine, a, ENGINE_HERE));
  OK(EngineVarFree(a));
  OK(EngineDestroy(engine));
}

TEST(WriteAndClearErrorClearThePoison) {
  EngineHandle engine = NewEngine(1);
  EngineVar a = NewVar(engine, "a");
  EngineOpDesc op = Writes("op", &a);
  uint64_t version = 0;
  OK(EnginePush(engine, &op, FailWith7, NULL, NULL));
  GIVES(ENGINE_E_OP, EngineWait(engine, a, ENGINE_HERE));
  OK(EngineClearError(engine, a, ENGINE_HERE));
  OK(EngineWait(engine, a, ENGINE_HERE));
  OK(EngineVarVersion(a, &version));
  CHECK(version == 1); /* of the failed write; clearing is none */
  OK(EnginePush(engine, &op, FailWith7, NULL, NULL));
  OK(EnginePush(engine, &op, DoNothing, NULL, NULL));
  OK(EngineWait(engine, a, ENGINE_HERE));
  GIVES(ENGINE_E_OP, EngineWaitAll(engine)); /* the overwritten error was never seen */
  CHECK(EngineGetLastOpError()->code == 7);
  OK(EngineWaitAll(engine));
  OK(EngineVarFree(a));
  OK(EngineDestroy(engine));
}

TEST(RunAlwaysRunsBehindAnErrorAndChainsItsOwn) {
  EngineHandle engine = NewEngine(1);
  EngineVar a = NewVar(engine, "a"), b = NewVar(engine, "b");
  EngineOpDesc fail = Writes("upstream", &a), always = Writes("always", &b);
  atomic_int runs = 0;
  always.reads = &a, always.num_reads = 1, always.flags = ENGINE_OP_RUN_ALWAYS;
  OK(EnginePush(engine, &fail, FailWith7, NULL, NULL));
  OK(EnginePush(engine, &always, CountRun, &runs, NULL));
  OK(EngineWait(engine, b, ENGINE_HERE));
  CHECK(atomic_load(&runs) == 1);
  OK(EnginePush(engine, &always, FailSilently, NULL, NULL));
  GIVES(ENGINE_E_OP, EngineWait(engine, b, ENGINE_HERE));
  CHECK(strcmp(EngineGetLastOpError()->op, "always") == 0);
  CHECK(EngineGetLastOpError()->cause == ENGINE_E_BODY && EngineGetLastOpError()->code == -3);
  HAS(EngineGetLastError(), "upstream"); /* the text names both */
  HAS(EngineGetLastError(), "no seven today");
  OK(EngineVarFree(a));
  OK(EngineVarFree(b));
  OK(EngineDestroy(engine));
}

static void* MakeAnErrorElsewhere(void* text_seen) {
  REFUSED(EngineDestroy(NULL), "EngineDestroy");
  *(const char**)text_seen = EngineGetLastError()[0] ? "some" : "";
  return NULL;
}

TEST(LastErrorBelongsToItsThread) {
  pthread_t thread;
  const char* seen = "";
  REFUSED(EngineStop(NULL), "EngineStop");
  CHECK(pthread_create(&thread, NULL, MakeAnErrorElsewhere, &seen) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(strcmp(seen, "some") == 0);
  HAS(EngineGetLastError(), "EngineStop");
}

TEST(TimeoutIsNoErrorAndLeavesTheErrorTextAlone) {
  EngineHandle engine = NewEngine(1);
  EngineVar a = NewVar(engine, "a");
  EngineOpDesc op = Writes("slow", &a);
  Gate gate = GATE_INIT;
  REFUSED(EngineStop(NULL), "EngineStop");
  OK(EnginePush(engine, &op, WaitAtGate, &gate, NULL));
  GIVES(ENGINE_TIMEOUT, EngineWaitFor(engine, a, 1000, ENGINE_HERE));
  GIVES(ENGINE_TIMEOUT, EngineWaitAllFor(engine, 1000));
  HAS(EngineGetLastError(), "EngineStop");
  GateOpen(&gate);
  OK(EngineWaitFor(engine, a, INT64_MAX, ENGINE_HERE));
  OK(EngineVarFree(a));
  OK(EngineDestroy(engine));
}

typedef struct Own {
  EngineHandle engine;
  EngineVar own, other;
} Own;

static int32_t WaitForItself(EngineContext* context, void* param) {
  const Own* own = param;
  (void)context;
  GIVES(ENGINE_E_USAGE, EngineWait(own->engine, own->own, ENGINE_HERE));
  GIVES(ENGINE_E_USAGE, EngineWaitToWrite(own->engine, own->own, ENGINE_HERE));
  GIVES(ENGINE_E_USAGE, EngineWaitAll(own->engine));
  OK(EngineWait(own->engine, own->other, ENGINE_HERE)); /* other Vars may be waited for, with one worker too */
  return 0;
}

TEST(WaitForItsOwnVarIsRefusedInsideAnOp) {
  EngineHandle engine = NewEngine(1);
  Own own = {engine, NewVar(engine, "own"), NewVar(engine, "other")};
  EngineOpDesc op = Writes("selfish", &own.own), slow = Writes("slow", &own.other);
  Gate gate = GATE_INIT;
  OK(EnginePush(engine, &op, WaitAtGate, &gate, NULL));
  OK(EnginePush(engine, &op, WaitForItself, &own, NULL));
  OK(EnginePush(engine, &slow, DoNothing, NULL, NULL)); /* behind it in the queue of the one worker */
  GateOpen(&gate);
  OK(EngineWait(engine, own.own, ENGINE_HERE));
  OK(EngineVarFree(own.own));
  OK(EngineVarFree(own.other));
  OK(EngineDestroy(engine));
}

TEST(CancelledOpsAreSkippedUnlessTheyRunAlways) {
  EngineHandle engine = NewEngine(1);
  EngineVar a = NewVar(engine, "a"), b = NewVar(engine, "b");
  EngineOpDesc block = Writes("block", &a), skip = Writes("skip", &a), always = Writes("always", &b);
  EngineCancelScope scope = NULL;
  Gate gate = GATE_INIT;
  atomic_int runs = 0;
  int32_t cancelled = 9;
  OK(EngineCancelScopeNew(&scope));
  OK(EnginePush(engine, &block, WaitAtGate, &gate, NULL));
  OK(EngineCancelScopeEnter(scope));
  OK(EnginePush(engine, &skip, CountRun, &runs, NULL)); /* under the scope of the thread */
  OK(EngineCancelScopeLeave(scope));
  always.cancel = scope, always.flags = ENGINE_OP_RUN_ALWAYS; /* under the scope that it names */
  OK(EngineCancelScopeCancelled(scope, &cancelled));
  CHECK(cancelled == 0);
  OK(EngineCancelScopeCancel(scope));
  OK(EngineCancelScopeCancelled(scope, &cancelled));
  CHECK(cancelled == 1);
  OK(EnginePush(engine, &always, CountRun, &runs, NULL));
  GateOpen(&gate);
  OK(EngineWait(engine, b, ENGINE_HERE));
  GIVES(ENGINE_E_OP, EngineWait(engine, a, ENGINE_HERE));
  CHECK(EngineGetLastOpError()->cause == ENGINE_E_CANCELLED && strcmp(EngineGetLastOpError()->op, "skip") == 0);
  CHECK(atomic_load(&runs) == 1);
  OK(EngineCancelScopeFree(scope));
  OK(EngineVarFree(a));
  OK(EngineVarFree(b));
  OK(EngineDestroy(engine));
}

TEST(ScopesNestAndAreLeftInTurn) {
  EngineHandle engine = NewEngine(1);
  EngineVar a = NewVar(engine, "a");
  EngineOpDesc op = Writes("op", &a);
  EngineCancelScope outer = NULL, inner = NULL;
  OK(EngineCancelScopeNew(&outer));
  OK(EngineCancelScopeNew(&inner));
  REFUSED(EngineCancelScopeLeave(outer), "in no cancel scope");
  OK(EngineCancelScopeEnter(outer));
  OK(EngineCancelScopeEnter(inner));
  REFUSED(EngineCancelScopeLeave(outer), "not the cancel scope that was entered last");
  OK(EngineCancelScopeCancel(inner));
  OK(EngineCancelScopeFree(inner)); /* the thread stays under it */
  OK(EnginePush(engine, &op, DoNothing, NULL, NULL));
  GIVES(ENGINE_E_OP, EngineWait(engine, a, ENGINE_HERE));
  OK(EngineCancelScopeLeave(inner));
  OK(EnginePush(engine, &op, DoNothing, NULL, NULL)); /* under the outer one, which is not cancelled */
  OK(EngineWait(engine, a, ENGINE_HERE));
  OK(EngineCancelScopeLeave(outer));
  OK(EngineCancelScopeFree(outer));
  REFUSED(EngineCancelScopeEnter(outer), "the cancel scope handle is not live");
  OK(EngineVarFree(a));
  OK(EngineDestroy(engine));
}

const TestCase kErrorTests[] = {CASE(WaitTellsWhichOpFailedWhereAndThroughWhich),
                                CASE(NonzeroStatusWithoutATextIsNamed),
                                CASE(TextWithoutANonzeroStatusIsNoFailure),
                                CASE(WriteAndClearErrorClearThePoison),
                                CASE(RunAlwaysRunsBehindAnErrorAndChainsItsOwn),
                                CASE(LastErrorBelongsToItsThread),
                                CASE(TimeoutIsNoErrorAndLeavesTheErrorTextAlone),
                                CASE(WaitForItsOwnVarIsRefusedInsideAnOp),
                                CASE(CancelledOpsAreSkippedUnlessTheyRunAlways),
                                CASE(ScopesNestAndAreLeftInTurn),
                                {NULL, NULL}};
