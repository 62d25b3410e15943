/* Pushing: order, roles, placements, operators, held ops, bounds, and the deleter that runs once. */
#include "c_test.h"

static int32_t Append(EngineContext* context, void* text) {
  const char* name = NULL;
  OK(EngineContextName(context, &name));
  strcat(text, name); /* no lock: the ops that append conflict */
  return 0;
}

TEST(ConflictingOpsRunInTheOrderOfTheirPushes) {
  EngineHandle engine = NewEngine(4);
  EngineVar a = NewVar(engine, "a"), b = NewVar(engine, "b");
  char text[64] = "", name[2] = "a";
  EngineOpDesc op = {.struct_size = sizeof op, .name = name, .updates = &a, .num_updates = 1};
  for (; name[0] <= 'z'; ++name[0]) { /* one buffer, another name each time: names are copied */
    if (name[0] == 'm') op.reads = &b, op.num_reads = 1;
    OK(EnginePush(engine, &op, Append, text, NULL));
  }
  OK(EngineWait(engine, a, ENGINE_HERE));
  CHECK(strcmp(text, "abcdefghijklmnopqrstuvwxyz") == 0);
  OK(EngineVarFree(a));
  OK(EngineVarFree(b));
  OK(EngineDestroy(engine));
}

TEST(WriterWaitsForEarlierReadersAndReadersRunTogether) {
  EngineHandle engine = NewEngine(2);
  EngineVar a = NewVar(engine, "a");
  EngineOpDesc read = {.struct_size = sizeof read, .name = "read", .reads = &a, .num_reads = 1};
  EngineOpDesc write = Writes("write", &a);
  Gate gate = GATE_INIT;
  atomic_int runs = 0;
  OK(EnginePush(engine, &read, WaitAtGate, &gate, NULL));
  OK(EnginePush(engine, &write, CountRun, &runs, NULL));
  GIVES(ENGINE_TIMEOUT, EngineWaitFor(engine, a, 1000, ENGINE_HERE));
  CHECK(atomic_load(&runs) == 0);
  GateOpen(&gate);
  OK(EngineWaitToWrite(engine, a, ENGINE_HERE));
  CHECK(atomic_load(&runs) == 1);
  Gate second = GATE_INIT;
  OK(EnginePush(engine, &read, WaitAtGate, &second, NULL));
  OK(EnginePush(engine, &read, OpenGate, &second, NULL)); /* needs to run beside the first */
  OK(EngineWaitToWrite(engine, a, ENGINE_HERE));
  OK(EngineVarFree(a));
  OK(EngineDestroy(engine));
}

TEST(RepeatedVarsCountOnce) {
  EngineHandle engine = NewEngine(1);
  EngineVar a = NewVar(engine, "a");
  const EngineVar twice[] = {a, a};
  EngineOpDesc op = {.struct_size = sizeof op,
                     .name = "everything",
                     .reads = twice,
                     .updates = twice,
                     .writes = twice,
                     .num_reads = 2,
                     .num_updates = 2,
                     .num_writes = 2};
  uint64_t version = 0;
  OK(EnginePush(engine, &op, DoNothing, NULL, NULL));
  OK(EngineWait(engine, a, ENGINE_HERE));
  OK(EngineVarVersion(a, &version));
  CHECK(version == 1);
  OK(EngineVarFree(a));
  OK(EngineDestroy(engine));
}

TEST(OpsMayNameManyVars) {
  enum { kVars = 100 };
  EngineHandle engine = NewEngine(2);
  EngineVar vars[kVars];
  atomic_int runs = 0;
  uint64_t version = 0;
  for (int i = 0; i < kVars; ++i) vars[i] = NewVar(engine, NULL);
  EngineOpDesc op = {.struct_size = sizeof op,
                     .reads = vars,
                     .updates = vars + 40,
                     .writes = vars + 70,
                     .num_reads = 40,
                     .num_updates = 30,
                     .num_writes = 30};
  OK(EnginePush(engine, &op, CountRun, &runs, NULL));
  OK(EngineWaitAll(engine));
  CHECK(atomic_load(&runs) == 1);
  for (int i = 0; i < kVars; ++i) {
    OK(EngineVarVersion(vars[i], &version));
    CHECK(version == (i < 40 ? 0 : 1));
    OK(EngineVarFree(vars[i]));
  }
  OK(EngineDestroy(engine));
}

TEST(BlockingIoRunsBesideABusyWorker) {
  EngineHandle engine = NewEngine(1);
  EngineVar a = NewVar(engine, "a"), b = NewVar(engine, "b");
  EngineOpDesc compute = Writes("compute", &a), io = Writes("io", &b);
  Gate gate = GATE_INIT;
  io.place.kind = ENGINE_PLACE_IO;
  OK(EnginePush(engine, &compute, WaitAtGate, &gate, NULL));
  OK(EnginePush(engine, &io, OpenGate, &gate, NULL));
  OK(EngineWait(engine, a, ENGINE_HERE));
  for (uint32_t kind = ENGINE_PLACE_COPY_IN; kind <= ENGINE_PLACE_COPY_OUT; ++kind) {
    io.place.kind = kind;
    OK(EnginePush(engine, &io, DoNothing, NULL, NULL));
  }
  OK(EngineWait(engine, b, ENGINE_HERE));
  OK(EngineVarFree(a));
  OK(EngineVarFree(b));
  OK(EngineDestroy(engine));
}

TEST(HigherPriorityRunsFirstAmongReadyOps) {
  EngineHandle engine = NewEngine(1);
  char text[8] = "";
  Gate gate = GATE_INIT, started = GATE_INIT;
  EngineOpDesc op = {.struct_size = sizeof op, .name = "block"};
  OK(EnginePush(engine, &op, OpenGate, &started, NULL));
  OK(EnginePush(engine, &op, WaitAtGate, &gate, NULL));
  GateWait(&started);
  op.name = "l", op.priority = -2;
  OK(EnginePush(engine, &op, Append, text, NULL));
  op.name = "h", op.priority = 2;
  OK(EnginePush(engine, &op, Append, text, NULL));
  GateOpen(&gate);
  OK(EngineWaitAll(engine));
  CHECK(strcmp(text, "hl") == 0);
  OK(EngineDestroy(engine));
}

TEST(HeldOpKeepsItsPlaceAndStartsWhenReleased) {
  EngineHandle engine = NewEngine(1);
  EngineVar a = NewVar(engine, "a");
  EngineOpDesc op = {.struct_size = sizeof op, .name = "1", .updates = &a, .num_updates = 1};
  EngineHeld held = NULL;
  char text[8] = "";
  OK(EnginePushHeld(engine, &op, Append, text, NULL, &held));
  op.name = "2";
  OK(EnginePush(engine, &op, Append, text, NULL));
  GIVES(ENGINE_TIMEOUT, EngineWaitFor(engine, a, 0, ENGINE_HERE));
  OK(EngineHeldRelease(held));
  OK(EngineWait(engine, a, ENGINE_HERE));
  CHECK(strcmp(text, "12") == 0);
  REFUSED(EngineHeldRelease(held), "the held op handle is not live");
  REFUSED(EngineHeldRelease(NULL), "the held op handle is null");
  OK(EngineVarFree(a));
  OK(EngineDestroy(engine));
}

TEST(OperatorIsPushedOftenAndDeletedOnce) {
  EngineHandle engine = NewEngine(2);
  EngineVar a = NewVar(engine, "a"), b = NewVar(engine, "b");
  EngineOpDesc op = {.struct_size = sizeof op,
                     .name = "step",
                     .site = ENGINE_HERE,
                     .reads = &a,
                     .updates = &b,
                     .num_reads = 1,
                     .num_updates = 1};
  EngineOperator step = NULL;
  struct {
    atomic_int runs;
    Gate gate;
  } shared = {0, GATE_INIT};
  uint64_t version = 0;
  OK(EngineOperatorNew(engine, &op, CountRun, &shared.runs, CountDelete, &step)); /* deletion counts as a run */
  for (int i = 0; i < 50; ++i) OK(EngineOperatorPush(engine, step, ENGINE_HERE));
  OK(EngineOperatorPushPriority(engine, step, 2, ENGINE_HERE));
  OK(EngineWait(engine, b, ENGINE_HERE));
  CHECK(atomic_load(&shared.runs) == 51);
  EngineOpDesc block = Writes("block", &b);
  OK(EnginePush(engine, &block, WaitAtGate, &shared.gate, NULL));
  OK(EngineOperatorPush(engine, step, ENGINE_HERE));
  OK(EngineOperatorFree(step)); /* with a push pending */
  REFUSED(EngineOperatorPush(engine, step, ENGINE_HERE), "the operator handle is not live");
  CHECK(atomic_load(&shared.runs) == 51);
  GateOpen(&shared.gate);
  OK(EngineWait(engine, b, ENGINE_HERE));
  OK(EngineVarVersion(b, &version));
  CHECK(version == 53);
  OK(EngineVarFree(a));
  OK(EngineVarFree(b));
  OK(EngineDestroy(engine));
  CHECK(atomic_load(&shared.runs) == 53);
}

TEST(TryPushThatSaysNoLeavesTheParameterToTheCaller) {
  EngineConfig config;
  EngineHandle engine = NULL;
  OK(EngineConfigInit(&config, sizeof config));
  config.workers = 1;
  config.max_pending = 64;
  OK(EngineCreate(&config, &engine));
  EngineVar a = NewVar(engine, "a");
  EngineOpDesc op = Writes("op", &a);
  Gate gate = GATE_INIT;
  atomic_int deleted = 0;
  int accepted = 0;
  EngineStatus status = ENGINE_OK;
  OK(EnginePush(engine, &op, WaitAtGate, &gate, NULL));
  while (accepted < 100000 && (status = EngineTryPush(engine, &op, DoNothing, &deleted, CountDelete)) == ENGINE_OK) {
    ++accepted;
  }
  GIVES(ENGINE_WOULD_BLOCK, status);
  CHECK(atomic_load(&deleted) == 0 && accepted >= 1);
  GateOpen(&gate);
  OK(EngineWait(engine, a, ENGINE_HERE));
  OK(EngineTryPush(engine, &op, DoNothing, &deleted, CountDelete));
  OK(EngineDestroy(engine));
  CHECK(atomic_load(&deleted) == accepted + 1);
  OK(EngineVarFree(a));
}

typedef struct Flood {
  EngineHandle engine;
  EngineVar var;
  int accepted;
  atomic_int deleted;
} Flood;

static int32_t PushUntilRefused(EngineContext* context, void* param) {
  Flood* flood = param;
  EngineOpDesc op = Writes("drop", &flood->var);
  EngineStatus status;
  (void)context;
  while ((status = EnginePush(flood->engine, &op, DoNothing, &flood->deleted, CountDelete)) == ENGINE_OK) {
    if (++flood->accepted > 1000000) return 1;
  }
  GIVES(ENGINE_E_BACKPRESSURE, status);
  return 0;
}

TEST(HardBoundRefusesNestedPushesToo) {
  EngineConfig config;
  Flood flood = {.engine = NULL};
  OK(EngineConfigInit(&config, sizeof config));
  config.workers = 1;
  config.max_pending = 64;
  config.hard_max_pending = 4096;
  OK(EngineCreate(&config, &flood.engine));
  flood.var = NewVar(flood.engine, "flooded");
  EngineOpDesc op = Writes("flood", &flood.var);
  OK(EnginePush(flood.engine, &op, PushUntilRefused, &flood, NULL));
  OK(EngineWaitAll(flood.engine));
  OK(EngineVarFree(flood.var));
  OK(EngineDestroy(flood.engine));
  CHECK(flood.accepted >= 1 && atomic_load(&flood.deleted) == flood.accepted + 1);
}

TEST(DeleterRunsOnceHoweverTheOpEnds) {
  EngineHandle engine = NewEngine(1);
  EngineVar a = NewVar(engine, "a"), b = NewVar(engine, "b"), c = NewVar(engine, "c");
  EngineCancelScope scope = NULL;
  EngineOpDesc ran = Writes("ran", &a), skipped = Writes("skipped", &b), cancelled = Writes("cancelled", &c);
  Gate gate = GATE_INIT;
  atomic_int deleted[4] = {0, 0, 0, 0};
  OK(EngineCancelScopeNew(&scope));
  OK(EnginePush(engine, &ran, WaitAtGate, &gate, NULL));
  OK(EnginePush(engine, &ran, DoNothing, &deleted[0], CountDelete));
  OK(EnginePush(engine, &ran, FailWith7, &deleted[1], CountDelete));
  skipped.reads = &a, skipped.num_reads = 1;
  OK(EnginePush(engine, &skipped, DoNothing, &deleted[2], CountDelete));
  cancelled.updates = &a, cancelled.num_updates = 1, cancelled.cancel = scope;
  OK(EnginePush(engine, &cancelled, DoNothing, &deleted[3], CountDelete));
  OK(EngineCancelScopeCancel(scope));
  for (int i = 0; i < 4; ++i) CHECK(atomic_load(&deleted[i]) == 0);
  GateOpen(&gate);
  GIVES(ENGINE_E_OP, EngineWait(engine, b, ENGINE_HERE));
  GIVES(ENGINE_E_OP, EngineWait(engine, c, ENGINE_HERE));
  OK(EngineCancelScopeFree(scope));
  OK(EngineVarFree(a));
  OK(EngineVarFree(b));
  OK(EngineVarFree(c));
  OK(EngineDestroy(engine));
  for (int i = 0; i < 4; ++i) CHECK(atomic_load(&deleted[i]) == 1);
}

TEST(ShutdownReleasesItsOwnHeldOps) {
  EngineHandle engine = NewEngine(1), other = NewEngine(1);
  EngineVar a = NewVar(engine, "a"), b = NewVar(other, "b");
  EngineOpDesc op = Writes("held", &a), elsewhere = Writes("held elsewhere", &b);
  EngineHeld held = NULL, held_elsewhere = NULL;
  atomic_int runs = 0, runs_elsewhere = 0;
  OK(EnginePushHeld(engine, &op, CountRun, &runs, CountDelete, &held));
  OK(EnginePushHeld(other, &elsewhere, CountRun, &runs_elsewhere, NULL, &held_elsewhere));
  OK(EngineDestroy(engine));
  CHECK(atomic_load(&runs) == 2); /* ran, and its parameter was deleted */
  REFUSED(EngineHeldRelease(held), "the held op handle is not live");
  CHECK(atomic_load(&runs_elsewhere) == 0);
  OK(EngineHeldRelease(held_elsewhere));
  OK(EngineWait(other, b, ENGINE_HERE));
  CHECK(atomic_load(&runs_elsewhere) == 1);
  OK(EngineVarFree(a));
  OK(EngineVarFree(b));
  OK(EngineDestroy(other));
}

TEST(BulksOfOpsForTheHostHoldNothing) {
  EngineHandle engine = NewEngine(1);
  EngineVar a = NewVar(engine, "a");
  EngineOpDesc op = {.struct_size = sizeof op, .name = "op", .updates = &a, .num_updates = 1};
  atomic_int runs = 0;
  int32_t before = -1;
  OK(EngineSetBulkSize(engine, 1000, &before));
  CHECK(before == 0);
  for (int i = 0; i < 100; ++i) OK(EnginePush(engine, &op, CountRun, &runs, NULL));
  OK(EngineWaitAll(engine));
  CHECK(atomic_load(&runs) == 100);
  EngineCounters counters = {.struct_size = sizeof counters};
  OK(EngineGetCounters(engine, &counters));
  CHECK(counters.dispatches == 100);
  GIVES(ENGINE_E_USAGE, EngineSetBulkSize(engine, -1, &before));
  GIVES(ENGINE_E_USAGE, EngineSetBulkSize(engine, INT32_MAX, &before));
  GIVES(ENGINE_E_USAGE, EngineSetBulkSize(NULL, 1, &before));
  OK(EngineSetBulkSize(engine, 0, &before));
  CHECK(before == 1000);
  OK(EngineSetBulkSize(engine, 0, NULL));
  OK(EngineVarFree(a));
  OK(EngineDestroy(engine));
}

const TestCase kPushTests[] = {CASE(ConflictingOpsRunInTheOrderOfTheirPushes),
                               CASE(WriterWaitsForEarlierReadersAndReadersRunTogether),
                               CASE(RepeatedVarsCountOnce),
                               CASE(BulksOfOpsForTheHostHoldNothing),
                               CASE(OpsMayNameManyVars),
                               CASE(BlockingIoRunsBesideABusyWorker),
                               CASE(HigherPriorityRunsFirstAmongReadyOps),
                               CASE(HeldOpKeepsItsPlaceAndStartsWhenReleased),
                               CASE(OperatorIsPushedOftenAndDeletedOnce),
                               CASE(TryPushThatSaysNoLeavesTheParameterToTheCaller),
                               CASE(HardBoundRefusesNestedPushesToo),
                               CASE(DeleterRunsOnceHoweverTheOpEnds),
                               CASE(ShutdownReleasesItsOwnHeldOps),
                               {NULL, NULL}};
