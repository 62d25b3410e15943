/* Engines: their life, policies, counters, traces and reports. */
#include "c_test.h"

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

TEST(NullConfigGivesTheDefaultEngine) {
  EngineHandle engine = NULL;
  int32_t workers = 0;
  OK(EngineCreate(NULL, &engine));
  OK(EngineWorkers(engine, &workers));
  CHECK(workers >= 1);
  OK(EngineDestroy(engine));
}

TEST(SeveralEnginesCoexist) {
  EngineHandle first = NewEngine(1), second = NewEngine(2);
  EngineVar a = NewVar(first, "a"), b = NewVar(second, "b");
  atomic_int runs = 0;
  EngineOpDesc write_a = Writes("a", &a), write_b = Writes("b", &b);
  OK(EnginePush(first, &write_a, CountRun, &runs, NULL));
  OK(EnginePush(second, &write_b, CountRun, &runs, NULL));
  OK(EngineWait(first, a, ENGINE_HERE));
  OK(EngineWait(second, b, ENGINE_HERE));
  CHECK(atomic_load(&runs) == 2);
  OK(EngineVarFree(a));
  OK(EngineVarFree(b));
  OK(EngineDestroy(first));
  OK(EngineDestroy(second));
}

TEST(ZeroWorkersRunOpsInsideWaits) {
  EngineHandle engine = NewEngine(0);
  EngineVar a = NewVar(engine, "a");
  atomic_int runs = 0;
  EngineOpDesc op = Writes("write", &a);
  OK(EnginePush(engine, &op, CountRun, &runs, NULL));
  CHECK(atomic_load(&runs) == 0);
  OK(EngineWait(engine, a, ENGINE_HERE));
  CHECK(atomic_load(&runs) == 1);
  OK(EngineVarFree(a));
  OK(EngineDestroy(engine));
}

TEST(StoppedEngineQueuesAndGoesOnAfterStart) {
  EngineHandle engine = NewEngine(1);
  EngineVar a = NewVar(engine, "a");
  atomic_int runs = 0;
  EngineOpDesc op = Writes("write", &a);
  OK(EngineStop(engine));
  OK(EngineStop(engine));
  OK(EnginePush(engine, &op, CountRun, &runs, NULL));
  GIVES(ENGINE_TIMEOUT, EngineWaitFor(engine, a, 0, ENGINE_HERE));
  CHECK(atomic_load(&runs) == 0);
  OK(EngineStart(engine));
  OK(EngineWait(engine, a, ENGINE_HERE));
  CHECK(atomic_load(&runs) == 1);
  OK(EngineVarFree(a));
  OK(EngineDestroy(engine));
}

TEST(ShutdownDrainsAndThenRefusesPushes) {
  EngineHandle engine = NewEngine(1);
  EngineVar a = NewVar(engine, "a");
  atomic_int runs = 0, deleted = 0;
  EngineOpDesc op = Writes("write", &a);
  for (int i = 0; i < 100; ++i) OK(EnginePush(engine, &op, CountRun, &runs, NULL));
  OK(EngineShutdown(engine));
  OK(EngineShutdown(engine));
  CHECK(atomic_load(&runs) == 100);
  GIVES(ENGINE_E_USAGE, EnginePush(engine, &op, DoNothing, &deleted, CountDelete));
  CHECK(atomic_load(&deleted) == 1);
  OK(EngineVarFree(a));
  OK(EngineDestroy(engine));
}

TEST(DestroyedEngineIsRefused) {
  EngineHandle engine = NewEngine(1);
  EngineVar a = NewVar(engine, "a"), b = NULL;
  OK(EngineDestroy(engine));
  REFUSED(EngineDestroy(engine), "EngineDestroy: the engine handle is not live");
  REFUSED(EngineWaitAll(engine), "not live");
  REFUSED(EngineVarNew(engine, "b", &b), "not live");
  CHECK(b == NULL);
  OK(EngineVarFree(a));
}

static int32_t DestroyItsEngine(EngineContext* context, void* engine) {
  (void)context;
  REFUSED(EngineDestroy(*(EngineHandle*)engine), "EngineDestroy");
  REFUSED(EngineShutdown(*(EngineHandle*)engine), "EngineShutdown");
  return 0;
}

TEST(DestroyOnItsOwnWorkerIsRefusedAndTheEngineGoesOn) {
  EngineHandle engine = NewEngine(1);
  EngineVar a = NewVar(engine, "a");
  EngineOpDesc op = Writes("suicide", &a);
  OK(EnginePush(engine, &op, DestroyItsEngine, &engine, NULL));
  OK(EngineWait(engine, a, ENGINE_HERE));
  OK(EnginePush(engine, &op, DoNothing, NULL, NULL));
  OK(EngineWait(engine, a, ENGINE_HERE));
  OK(EngineVarFree(a));
  OK(EngineDestroy(engine));
}

TEST(CountersCountPushedAndSkippedOps) {
  EngineHandle engine = NewEngine(1);
  EngineVar a = NewVar(engine, "a"), b = NewVar(engine, "b");
  EngineOpDesc fail = Writes("fail", &a), skip = Writes("skip", &b);
  EngineCounters counters = {.struct_size = sizeof counters};
  skip.reads = &a;
  skip.num_reads = 1;
  OK(EnginePush(engine, &fail, FailWith7, NULL, NULL));
  OK(EnginePush(engine, &skip, DoNothing, NULL, NULL));
  GIVES(ENGINE_E_OP, EngineWait(engine, b, ENGINE_HERE));
  GIVES(ENGINE_OK, EngineWaitAll(engine));
  OK(EngineGetCounters(engine, &counters));
  CHECK(counters.pushed == 2 && counters.completed == 2 && counters.skipped == 1);
  CHECK(counters.slab_bytes > 0 && counters.unseen_errors == 0);
  counters.struct_size = 8;
  REFUSED(EngineGetCounters(engine, &counters), "struct_size");
  OK(EngineVarFree(a));
  OK(EngineVarFree(b));
  OK(EngineDestroy(engine));
}

TEST(TraceNamesTheOpsInTextAndFile) {
  EngineHandle engine = NewEngine(1);
  EngineVar a = NewVar(engine, "a");
  EngineOpDesc op = Writes("traced_op", &a);
  char path[] = "/tmp/engine_c_api_trace_XXXXXX", *json = NULL, read[64] = {0};
  const int made = mkstemp(path);
  CHECK(made >= 0);
  close(made);
  OK(EngineTraceStart(engine));
  OK(EnginePush(engine, &op, DoNothing, NULL, NULL));
  OK(EngineWait(engine, a, ENGINE_HERE));
  GIVES(ENGINE_E_IO, EngineTraceStop(engine, "/nowhere/at/all", &json));
  HAS(EngineGetLastError(), "/nowhere/at/all");
  CHECK(json == NULL);
  OK(EngineTraceStop(engine, path, &json)); /* the refused stop lost nothing */
  HAS(json, "traced_op");
  FILE* file = fopen(path, "rb");
  CHECK(file && fread(read, 1, sizeof read - 1, file) > 0 && strncmp(json, read, strlen(read)) == 0);
  fclose(file);
  remove(path);
  EngineStringFree(json);
  OK(EngineVarFree(a));
  OK(EngineDestroy(engine));
}

TEST(DescribePendingNamesWhatIsStuckAndWhereItWasPushed) {
  EngineHandle engine = NewEngine(1);
  EngineVar a = NewVar(engine, "stuck_var");
  EngineOpDesc op = Writes("stuck_op", &a), behind = Writes("behind", &a);
  Gate gate = GATE_INIT;
  char* text = NULL;
  OK(EnginePush(engine, &op, WaitAtGate, &gate, NULL));
  OK(EnginePush(engine, &behind, DoNothing, NULL, NULL));
  OK(EngineDescribePending(engine, &text));
  HAS(text, "stuck_var");
  HAS(text, "stuck_op");
  HAS(text, "behind");
  HAS(text, "c_test.c:");
  EngineStringFree(text);
  GateOpen(&gate);
  OK(EngineVarFree(a));
  OK(EngineDestroy(engine));
}

TEST(ForkedChildPushesOnItsOwn) {
  EngineHandle engine = NewEngine(1);
  EngineVar a = NewVar(engine, "a");
  EngineOpDesc op = Writes("write", &a);
  OK(EnginePush(engine, &op, DoNothing, NULL, NULL));
  OK(EngineWait(engine, a, ENGINE_HERE));
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    atomic_int runs = 0;
    EngineVar b = NewVar(engine, "b");
    op.writes = &b;
    OK(EnginePush(engine, &op, CountRun, &runs, NULL));
    OK(EngineWait(engine, b, ENGINE_HERE));
    _exit(atomic_load(&runs) == 1 ? 0 : 1);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  OK(EnginePush(engine, &op, DoNothing, NULL, NULL));
  OK(EngineWait(engine, a, ENGINE_HERE));
  OK(EngineVarFree(a));
  OK(EngineDestroy(engine));
}

TEST(VersionsAndStatusNamesAreThere) {
  CHECK(EngineVersion()[0] >= '0' && strchr(EngineVersion(), '.') != NULL);
  CHECK(EngineCApiVersion() >= ENGINE_C_API_VERSION);
  CHECK(strcmp(EngineStatusName(ENGINE_E_BACKPRESSURE), "ENGINE_E_BACKPRESSURE") == 0);
  CHECK(strcmp(EngineStatusName(-1000), "unknown status") == 0);
}

const TestCase kEngineTests[] = {CASE(NullConfigGivesTheDefaultEngine),
                                 CASE(SeveralEnginesCoexist),
                                 CASE(ZeroWorkersRunOpsInsideWaits),
                                 CASE(StoppedEngineQueuesAndGoesOnAfterStart),
                                 CASE(ShutdownDrainsAndThenRefusesPushes),
                                 CASE(DestroyedEngineIsRefused),
                                 CASE(DestroyOnItsOwnWorkerIsRefusedAndTheEngineGoesOn),
                                 CASE(CountersCountPushedAndSkippedOps),
                                 CASE(TraceNamesTheOpsInTextAndFile),
                                 CASE(DescribePendingNamesWhatIsStuckAndWhereItWasPushed),
                                 CASE(ForkedChildPushesOnItsOwn),
                                 CASE(VersionsAndStatusNamesAreThere),
                                 {NULL, NULL}};
