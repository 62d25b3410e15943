/* Calls that cannot be honoured: each is refused with a text, changes nothing, and still deletes the parameter. */
#include "c_test.h"

static void FinishAsync(EngineContext* context, EngineCompletion done, void* param) {
  (void)context, (void)param;
  OK(EngineCompletionDone(done));
}

/* Pushes in all seven ways, and wants each refused, with the deleter run once. */
static void CheckRefusedPush(EngineHandle engine, const EngineOpDesc* op, const char* part) {
  atomic_int deleted = 0;
  EngineHeld held = NULL;
  EngineOperator result = NULL;
  REFUSED(EnginePush(engine, op, DoNothing, &deleted, CountDelete), part);
  REFUSED(EngineTryPush(engine, op, DoNothing, &deleted, CountDelete), part);
  REFUSED(EnginePushAsync(engine, op, FinishAsync, &deleted, CountDelete), part);
  REFUSED(EngineTryPushAsync(engine, op, FinishAsync, &deleted, CountDelete), part);
  REFUSED(EnginePushHeld(engine, op, DoNothing, &deleted, CountDelete, &held), part);
  REFUSED(EngineOperatorNew(engine, op, DoNothing, &deleted, CountDelete, &result), part);
  REFUSED(EngineOperatorNewAsync(engine, op, FinishAsync, &deleted, CountDelete, &result), part);
  CHECK(atomic_load(&deleted) == 7);
  CHECK(held == NULL && result == NULL);
  REFUSED(EnginePush(engine, op, DoNothing, NULL, NULL), part); /* no parameter, no deleter: just as well */
}

TEST(NullArraysWithCountZeroAreFine) {
  EngineHandle engine = NewEngine(1);
  EngineOpDesc op = {.struct_size = sizeof op};
  atomic_int runs = 0;
  OK(EnginePush(engine, &op, CountRun, &runs, NULL));
  OK(EngineWaitAll(engine));
  CHECK(atomic_load(&runs) == 1);
  OK(EngineDestroy(engine));
}

TEST(ImpossibleDescriptionsAreRefusedAndNamed) {
  EngineHandle engine = NewEngine(1);
  EngineVar a = NewVar(engine, "a");
  const EngineVar with_null[] = {a, NULL};
  EngineCancelScope scope = NULL;
  const EngineOpDesc good = {.struct_size = sizeof good, .name = "bad", .site = {"file.c", 7}};
  EngineOpDesc op;
  OK(EngineCancelScopeNew(&scope));
  OK(EngineCancelScopeFree(scope));

  CheckRefusedPush(NULL, &good, "the engine handle is null");
  CheckRefusedPush(engine, NULL, "description is null");
  op = good, op.num_reads = -1;
  CheckRefusedPush(engine, &op, "op 'bad' pushed at file.c:7: the number of reads is -1");
  op = good, op.num_updates = -2, op.updates = &a;
  CheckRefusedPush(engine, &op, "the number of updates is -2");
  op = good, op.num_writes = INT32_MIN;
  CheckRefusedPush(engine, &op, "the number of writes is -2147483648");
  op = good, op.num_reads = 3;
  CheckRefusedPush(engine, &op, "the array of 3 reads is null");
  op = good, op.num_writes = 2, op.writes = with_null;
  CheckRefusedPush(engine, &op, "op 'bad' pushed at file.c:7: writes[1]: the variable handle is null");
  op = good, op.place.kind = 17;
  CheckRefusedPush(engine, &op, "placement kind 17");
  op = good, op.place.index = 65536;
  CheckRefusedPush(engine, &op, "65536");
  op = good, op.place.kind = ENGINE_PLACE_POOL, op.place.index = 60;
  CheckRefusedPush(engine, &op, "pool");
  op = good, op.priority = 3;
  CheckRefusedPush(engine, &op, "op 'bad' pushed at file.c:7: priority is 3; allowed: -2 (last) to 2 (first)");
  op = good, op.priority = INT32_MIN;
  CheckRefusedPush(engine, &op, "priority is -2147483648");
  op = good, op.flags = 8;
  CheckRefusedPush(engine, &op, "unknown flags 8");
  op = good, op.reserved = 4;
  CheckRefusedPush(engine, &op, "unknown flags 4");
  op = good, op.cancel = scope;
  CheckRefusedPush(engine, &op, "the cancel scope handle is not live");
  op = good, op.struct_size = 4;
  CheckRefusedPush(engine, &op, "EngineOpDesc.struct_size is 4");
  op = good, op.site.file = NULL, op.name = NULL, op.num_reads = -1;
  CheckRefusedPush(engine, &op, "an unnamed op: the number of reads");

  uint64_t version = 9;
  OK(EngineWaitAll(engine)); /* nothing was pushed, and the engine goes on */
  OK(EngineVarVersion(a, &version));
  CHECK(version == 0);
  OK(EngineVarFree(a));
  OK(EngineDestroy(engine));
}

TEST(NullFunctionsAndResultsAreRefused) {
  EngineHandle engine = NewEngine(1);
  EngineOpDesc op = {.struct_size = sizeof op, .name = "null"};
  atomic_int deleted = 0;
  REFUSED(EnginePush(engine, &op, NULL, &deleted, CountDelete), "op 'null': the function is null");
  REFUSED(EnginePushAsync(engine, &op, NULL, &deleted, CountDelete), "op 'null': the function is null");
  REFUSED(EnginePushHeld(engine, &op, DoNothing, &deleted, CountDelete, NULL), "the result is null");
  REFUSED(EngineOperatorNew(engine, &op, DoNothing, &deleted, CountDelete, NULL), "the result is null");
  CHECK(atomic_load(&deleted) == 4);
  REFUSED(EngineVarNew(engine, "v", NULL), "the result is null");
  REFUSED(EngineWorkers(engine, NULL), "the result is null");
  REFUSED(EngineGetPolicy(engine, NULL), "the result is null");
  REFUSED(EngineGetCounters(engine, NULL), "the result is null");
  REFUSED(EngineDescribePending(engine, NULL), "the result is null");
  REFUSED(EnginePool(engine, NULL, NULL), "is null");
  REFUSED(EngineCancelScopeNew(NULL), "the result is null");
  REFUSED(EngineConfigInit(NULL, sizeof(EngineConfig)), "the config is null");
  OK(EngineWaitAll(engine));
  OK(EngineDestroy(engine));
}

TEST(NullHandlesAreRefusedEverywhere) {
  uint64_t number = 0;
  int32_t flag = 0;
  const char* text = NULL;
  EngineVar var = NULL;
  REFUSED(EngineDestroy(NULL), "EngineDestroy: the engine handle is null");
  REFUSED(EngineShutdown(NULL), "null");
  REFUSED(EngineStop(NULL), "null");
  REFUSED(EngineStart(NULL), "null");
  REFUSED(EngineWaitAll(NULL), "null");
  REFUSED(EngineWaitAllFor(NULL, 0), "null");
  REFUSED(EngineTraceStart(NULL), "null");
  REFUSED(EngineTraceStop(NULL, NULL, NULL), "null");
  REFUSED(EngineSetPolicy(NULL, "naive"), "null");
  REFUSED(EngineVarNew(NULL, "v", &var), "null");
  REFUSED(EngineVarFree(NULL), "the variable handle is null");
  REFUSED(EngineVarCopy(NULL, &var), "null");
  REFUSED(EngineVarVersion(NULL, &number), "null");
  REFUSED(EngineVarName(NULL, &text), "null");
  REFUSED(EngineWait(NULL, NULL, ENGINE_NOWHERE), "null");
  REFUSED(EngineOperatorPush(NULL, NULL, ENGINE_NOWHERE), "null");
  REFUSED(EngineOperatorFree(NULL), "the operator handle is null");
  REFUSED(EngineCompletionDone(NULL), "the completion handle is null");
  REFUSED(EngineCompletionFail(NULL, 1, "text"), "the completion handle is null");
  REFUSED(EngineCompletionRetain(NULL), "the completion handle is null");
  REFUSED(EngineCompletionRelease(NULL), "the completion handle is null");
  REFUSED(EngineCancelScopeCancel(NULL), "the cancel scope handle is null");
  REFUSED(EngineCancelScopeCancelled(NULL, &flag), "null");
  REFUSED(EngineCancelScopeEnter(NULL), "null");
  REFUSED(EngineCancelScopeFree(NULL), "null");
  REFUSED(EngineContextName(NULL, &text), "the context is null");
  REFUSED(EngineContextWorker(NULL, &flag), "the context is null");
  REFUSED(EngineContextVersion(NULL, NULL, &number), "the context is null");
  REFUSED(EngineContextCancelled(NULL, &flag), "the context is null");
  REFUSED(EngineContextParallelFor(NULL, 1, 1, NULL, NULL), "the context is null");
  REFUSED(EngineOpSetError(NULL, "text"), "the context is null");
  EngineStringFree(NULL);
  CHECK(var == NULL && text == NULL);
}

TEST(NegativeTimeoutsAreRefused) {
  EngineHandle engine = NewEngine(1);
  EngineVar a = NewVar(engine, "a");
  REFUSED(EngineWaitFor(engine, a, -1, ENGINE_HERE), "timeout_ns is -1");
  REFUSED(EngineWaitAllFor(engine, -5), "timeout_ns is -5");
  OK(EngineWaitFor(engine, a, INT64_MAX, ENGINE_HERE));
  OK(EngineWaitAllFor(engine, INT64_MAX));
  OK(EngineVarFree(a));
  OK(EngineDestroy(engine));
}

const TestCase kRefusalTests[] = {
    CASE(NullArraysWithCountZeroAreFine),    CASE(ImpossibleDescriptionsAreRefusedAndNamed),
    CASE(NullFunctionsAndResultsAreRefused), CASE(NullHandlesAreRefusedEverywhere),
    CASE(NegativeTimeoutsAreRefused),        {NULL, NULL}};
