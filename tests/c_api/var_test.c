/* Vars: names, versions, and handles that are no longer, or never were, what they are used as. */
#include "c_test.h"

TEST(VersionCountsWritesAndNotReads) {
  EngineHandle engine = NewEngine(2);
  EngineVar a = NewVar(engine, "a"), b = NewVar(engine, "b");
  EngineOpDesc read = {.struct_size = sizeof read, .name = "read", .reads = &a, .num_reads = 1};
  EngineOpDesc write = Writes("write", &b);
  uint64_t version = 99;
  for (int i = 0; i < 10; ++i) {
    OK(EnginePush(engine, &read, DoNothing, NULL, NULL));
    OK(EnginePush(engine, &write, DoNothing, NULL, NULL));
  }
  OK(EngineWaitAll(engine));
  OK(EngineVarVersion(a, &version));
  CHECK(version == 0);
  OK(EngineVarVersion(b, &version));
  CHECK(version == 10);
  OK(EngineVarFree(a));
  OK(EngineVarFree(b));
  OK(EngineDestroy(engine));
}

TEST(NameIsCopied) {
  EngineHandle engine = NewEngine(1);
  char text[] = "weights";
  EngineVar named = NewVar(engine, text), unnamed = NewVar(engine, NULL);
  const char* name = NULL;
  text[0] = 'W';
  OK(EngineVarName(named, &name));
  CHECK(strcmp(name, "weights") == 0);
  OK(EngineVarName(unnamed, &name));
  CHECK(strcmp(name, "") == 0);
  OK(EngineVarFree(named));
  OK(EngineVarFree(unnamed));
  OK(EngineDestroy(engine));
}

TEST(FreedVarIsRefusedByEveryCall) {
  EngineHandle engine = NewEngine(1);
  EngineVar gone = NewVar(engine, "gone"), good = NewVar(engine, "good"), copy = NULL;
  const EngineVar both[] = {good, gone};
  EngineOpDesc op = {.struct_size = sizeof op, .name = "late", .site = {"here.c", 12}};
  uint64_t version = 0;
  const char* name = NULL;
  op.updates = both, op.num_updates = 2;
  OK(EngineVarFree(gone));
  REFUSED(EngineVarFree(gone), "EngineVarFree: the variable handle is not live");
  REFUSED(EngineVarDelete(engine, gone), "not live");
  REFUSED(EngineVarVersion(gone, &version), "not live");
  REFUSED(EngineVarName(gone, &name), "not live");
  REFUSED(EngineVarCopy(gone, &copy), "not live");
  REFUSED(EngineWait(engine, gone, ENGINE_HERE), "not live");
  REFUSED(EngineWaitFor(engine, gone, 0, ENGINE_HERE), "not live");
  REFUSED(EngineWaitToWrite(engine, gone, ENGINE_HERE), "not live");
  REFUSED(EngineClearError(engine, gone, ENGINE_HERE), "not live");
  REFUSED(EnginePush(engine, &op, DoNothing, NULL, NULL), "op 'late' pushed at here.c:12: updates[1]: the variable");
  OK(EngineWait(engine, good, ENGINE_HERE));
  OK(EngineVarVersion(good, &version));
  CHECK(version == 0 && copy == NULL);
  OK(EngineVarFree(good));
  OK(EngineDestroy(engine));
}

TEST(FreeingAVarLetsItsPendingOpsFinish) {
  EngineHandle engine = NewEngine(1);
  EngineVar a = NewVar(engine, "a");
  EngineOpDesc op = Writes("write", &a);
  Gate gate = GATE_INIT;
  atomic_int runs = 0;
  OK(EnginePush(engine, &op, WaitAtGate, &gate, NULL));
  OK(EnginePush(engine, &op, CountRun, &runs, NULL));
  OK(EngineVarFree(a));
  GateOpen(&gate);
  OK(EngineWaitAll(engine));
  CHECK(atomic_load(&runs) == 1);
  OK(EngineDestroy(engine));
}

TEST(DeletedVarIsRefusedThroughItsOtherHandles) {
  EngineHandle engine = NewEngine(1);
  EngineVar a = NewVar(engine, "tombstone"), copy = NULL;
  OK(EngineVarCopy(a, &copy));
  CHECK(copy != a);
  EngineOpDesc op = Writes("late", &copy);
  Gate gate = GATE_INIT;
  atomic_int runs = 0, deleted = 0;
  OK(EnginePush(engine, &op, WaitAtGate, &gate, NULL));
  OK(EnginePush(engine, &op, CountRun, &runs, NULL));
  OK(EngineVarDelete(engine, a));
  REFUSED(EngineVarDelete(engine, a), "not live");
  GIVES(ENGINE_E_USAGE, EnginePush(engine, &op, CountRun, &deleted, CountDelete));
  HAS(EngineGetLastError(), "tombstone");
  CHECK(atomic_load(&deleted) == 1);
  GateOpen(&gate);
  OK(EngineWaitAll(engine));
  CHECK(atomic_load(&runs) == 1);
  OK(EngineVarFree(copy));
  OK(EngineDestroy(engine));
}

TEST(CopiesKeepTheVariable) {
  EngineHandle engine = NewEngine(1);
  EngineVar a = NewVar(engine, "a"), copy = NULL;
  OK(EngineVarCopy(a, &copy));
  OK(EngineVarFree(a));
  EngineOpDesc op = Writes("write", &copy);
  uint64_t version = 0;
  OK(EnginePush(engine, &op, DoNothing, NULL, NULL));
  OK(EngineWait(engine, copy, ENGINE_HERE));
  OK(EngineVarVersion(copy, &version));
  CHECK(version == 1);
  OK(EngineVarFree(copy));
  OK(EngineDestroy(engine));
}

TEST(ForeignVarIsRefusedByName) {
  EngineHandle engine = NewEngine(1), other = NewEngine(1);
  EngineVar a = NewVar(other, "foreigner");
  EngineOpDesc op = Writes("write", &a);
  GIVES(ENGINE_E_USAGE, EnginePush(engine, &op, DoNothing, NULL, NULL));
  HAS(EngineGetLastError(), "foreigner");
  GIVES(ENGINE_E_USAGE, EngineWait(engine, a, ENGINE_HERE));
  GIVES(ENGINE_E_USAGE, EngineVarDelete(engine, a));
  OK(EngineVarDelete(other, a)); /* the refused deletion took nothing away */
  OK(EngineDestroy(engine));
  OK(EngineDestroy(other));
}

TEST(HandleOfAnotherKindIsRefused) {
  EngineHandle engine = NewEngine(1);
  EngineVar a = NewVar(engine, "a");
  int number = 0;
  uint64_t version = 0;
  REFUSED(EngineVarFree((EngineVar)(void*)engine), "the variable handle is not live");
  REFUSED(EngineDestroy((EngineHandle)(void*)a), "the engine handle is not live");
  REFUSED(EngineHeldRelease((EngineHeld)(void*)a), "the held op handle is not live");
  REFUSED(EngineVarVersion((EngineVar)(void*)&number, &version), "not live");
  REFUSED(EngineVarVersion((EngineVar)(uintptr_t)-1, &version), "not live");
  OK(EngineVarFree(a));
  OK(EngineDestroy(engine));
}

TEST(StaleHandleStaysDeadWhenItsPlaceIsUsedAgain) {
  EngineHandle engine = NewEngine(1);
  EngineVar stale = NewVar(engine, "first");
  uint64_t version = 0;
  OK(EngineVarFree(stale));
  for (int i = 0; i < 1000; ++i) {
    EngineVar next = NewVar(engine, "next");
    CHECK(next != stale);
    REFUSED(EngineVarVersion(stale, &version), "not live");
    OK(EngineVarVersion(next, &version));
    OK(EngineVarFree(next));
  }
  OK(EngineDestroy(engine));
}

TEST(VarOutlivesItsEngine) {
  EngineHandle engine = NewEngine(1), other = NewEngine(1);
  EngineVar a = NewVar(engine, "survivor");
  EngineOpDesc op = Writes("write", &a);
  uint64_t version = 0;
  const char* name = NULL;
  OK(EnginePush(engine, &op, DoNothing, NULL, NULL));
  OK(EngineDestroy(engine));
  OK(EngineVarVersion(a, &version));
  OK(EngineVarName(a, &name));
  CHECK(version == 1 && strcmp(name, "survivor") == 0);
  GIVES(ENGINE_E_USAGE, EnginePush(other, &op, DoNothing, NULL, NULL));
  OK(EngineVarFree(a));
  OK(EngineDestroy(other));
}

const TestCase kVarTests[] = {CASE(VersionCountsWritesAndNotReads),
                              CASE(NameIsCopied),
                              CASE(FreedVarIsRefusedByEveryCall),
                              CASE(FreeingAVarLetsItsPendingOpsFinish),
                              CASE(DeletedVarIsRefusedThroughItsOtherHandles),
                              CASE(CopiesKeepTheVariable),
                              CASE(ForeignVarIsRefusedByName),
                              CASE(HandleOfAnotherKindIsRefused),
                              CASE(StaleHandleStaysDeadWhenItsPlaceIsUsedAgain),
                              CASE(VarOutlivesItsEngine),
                              {NULL, NULL}};
