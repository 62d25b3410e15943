/* What a body asks while it runs. */
#include "c_test.h"

typedef struct Seen {
  EngineHandle engine;
  EngineVar read, written, absent;
  EngineCancelScope scope;
} Seen;

static int32_t LookAround(EngineContext* context, void* param) {
  const Seen* seen = param;
  const char* name = NULL;
  int32_t worker = -9, cancelled = -9;
  uint64_t version = 99;
  OK(EngineContextName(context, &name));
  CHECK(strcmp(name, "look") == 0);
  OK(EngineContextWorker(context, &worker));
  CHECK(worker >= 0 && worker < 2);
  OK(EngineContextVersion(context, seen->read, &version));
  CHECK(version == 1); /* the version that it sees */
  OK(EngineContextVersion(context, seen->written, &version));
  CHECK(version == 2); /* the version that it makes */
  REFUSED(EngineContextVersion(context, seen->absent, &version), "look");
  OK(EngineContextCancelled(context, &cancelled));
  CHECK(cancelled == 0);
  OK(EngineCancelScopeCancel(seen->scope));
  OK(EngineContextCancelled(context, &cancelled));
  CHECK(cancelled == 1);
  return 0;
}

TEST(BodySeesItsNameWorkerVersionsAndCancellation) {
  EngineHandle engine = NewEngine(2);
  Seen seen = {engine, NewVar(engine, "read"), NewVar(engine, "written"), NewVar(engine, "absent"), NULL};
  EngineOpDesc write = Writes("before", &seen.read), look = Writes("look", &seen.written);
  OK(EngineCancelScopeNew(&seen.scope));
  OK(EnginePush(engine, &write, DoNothing, NULL, NULL));
  write.writes = &seen.written;
  OK(EnginePush(engine, &write, DoNothing, NULL, NULL));
  look.reads = &seen.read, look.num_reads = 1, look.cancel = seen.scope;
  OK(EnginePush(engine, &look, LookAround, &seen, NULL));
  OK(EngineWait(engine, seen.written, ENGINE_HERE));
  OK(EngineCancelScopeFree(seen.scope));
  OK(EngineVarFree(seen.read));
  OK(EngineVarFree(seen.written));
  OK(EngineVarFree(seen.absent));
  OK(EngineDestroy(engine));
}

enum { kRange = 10000 };

static int32_t Mark(void* marks, int64_t begin, int64_t end) {
  CHECK(0 <= begin && begin <= end && end <= kRange);
  for (int64_t i = begin; i < end; ++i) ++((char*)marks)[i];
  return 0;
}

static int32_t FailInTheMiddle(void* unused, int64_t begin, int64_t end) {
  (void)unused;
  return begin <= kRange / 2 && kRange / 2 < end ? 5 : 0;
}

static int32_t UseParallelFor(EngineContext* context, void* marks) {
  OK(EngineContextParallelFor(context, kRange, 100, Mark, marks));
  OK(EngineContextParallelFor(context, kRange, 0, Mark, marks));
  OK(EngineContextParallelFor(context, 0, 1, FailInTheMiddle, NULL));
  GIVES(ENGINE_E_BODY, EngineContextParallelFor(context, kRange, 100, FailInTheMiddle, NULL));
  HAS(EngineGetLastError(), "returned status 5");
  REFUSED(EngineContextParallelFor(context, -1, 1, Mark, marks), "a range of -1");
  REFUSED(EngineContextParallelFor(context, 1, -1, Mark, marks), "a grain of -1");
  REFUSED(EngineContextParallelFor(context, 1, 1, NULL, marks), "the function is null");
  return 0;
}

TEST(ParallelForVisitsEachIndexOnceAndReportsAFailedPiece) {
  static char marks[kRange];
  EngineHandle engine = NewEngine(2);
  EngineVar a = NewVar(engine, "a");
  EngineOpDesc op = Writes("parallel", &a);
  OK(EnginePush(engine, &op, UseParallelFor, marks, NULL));
  OK(EngineWait(engine, a, ENGINE_HERE));
  for (int i = 0; i < kRange; ++i) CHECK(marks[i] == 2);
  OK(EngineVarFree(a));
  OK(EngineDestroy(engine));
}

static int32_t Nothing(EngineContext* context, void* arg) {
  (void)context;
  (void)arg;
  return 0;
}

typedef struct Ends {
  EngineHandle engine;
  atomic_int refused;
  atomic_int others; /* another thread has come */
  pthread_t caller;
} Ends;

static int32_t EndInAPiece(void* arg, int64_t begin, int64_t end) {
  Ends* ends = arg;
  if (!pthread_equal(pthread_self(), ends->caller)) ends->others = 1;
  for (int i = 0; i < 20000 && !ends->others; ++i) sched_yield();
  for (; begin < end; ++begin) ends->refused += EngineShutdown(ends->engine) == ENGINE_E_USAGE;
  return 0;
}
static int32_t EndInPieces(EngineContext* context, void* arg) {
  ((Ends*)arg)->caller = pthread_self();
  OK(EngineContextParallelFor(context, 64, 1, EndInAPiece, arg));
  return 0;
}

TEST(ParallelForPiecesAreInsideTheirBody) {
  EngineConfig config;
  OK(EngineConfigInit(&config, sizeof config));
  config.workers = 1;
  config.intra_op_threads = 4;
  Ends ends = {.refused = 0};
  OK(EngineCreate(&config, &ends.engine));
  EngineVar a = NewVar(ends.engine, "a"), b = NewVar(ends.engine, "b");
  EngineOpDesc op = Writes("parallel", &a), later = Writes("later", &b);
  EngineHeld held;
  int fails = 0;
  OK(EnginePushHeld(ends.engine, &later, Nothing, &fails, NULL, &held));
  OK(EnginePush(ends.engine, &op, EndInPieces, &ends, NULL));
  OK(EngineWait(ends.engine, a, ENGINE_HERE));
  CHECK(ends.refused == 64);
  OK(EngineHeldRelease(held)); /* what was refused has not released it */
  OK(EngineVarFree(a));
  OK(EngineVarFree(b));
  OK(EngineDestroy(ends.engine));
}

const TestCase kContextTests[] = {CASE(BodySeesItsNameWorkerVersionsAndCancellation),
                                  CASE(ParallelForVisitsEachIndexOnceAndReportsAFailedPiece),
                                  CASE(ParallelForPiecesAreInsideTheirBody),
                                  {NULL, NULL}};
