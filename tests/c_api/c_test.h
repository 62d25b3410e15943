/* The little that tests in C need: checks that say where they failed, a gate that bodies wait at, a table of tests.
 *
 * A test is TEST(Name) { ... } at the beginning of a line, so that the build finds it, and CASE(Name) in its file's
 * table. A failed check ends the process: bodies may still be running on the stack of the test. */
#ifndef ENGINE_TESTS_C_API_C_TEST_H_
#define ENGINE_TESTS_C_API_C_TEST_H_

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/c_api.h"

typedef struct TestCase {
  const char* name;
  void (*run)(void);
} TestCase;

#define TEST(name) static void name(void)
#define CASE(name) \
  { #name, name }

extern const TestCase kEngineTests[], kVarTests[], kPushTests[], kRefusalTests[], kErrorTests[], kAsyncTests[],
    kContextTests[], kPlanTests[], kGpuTests[], kCommTests[], kSetupTests[];

void Fail(const char* file, int line, const char* what);
void CheckStatus(const char* file, int line, const char* call, EngineStatus got, EngineStatus wanted);
void CheckText(const char* file, int line, const char* text, const char* part);

#define CHECK(condition) ((condition) ? (void)0 : Fail(__FILE__, __LINE__, #condition))
/* The call succeeds. */
#define OK(call) CheckStatus(__FILE__, __LINE__, #call, (call), ENGINE_OK)
/* The call gives this status. */
#define GIVES(status, call) CheckStatus(__FILE__, __LINE__, #call, (call), (status))
/* `text` contains `part`. */
#define HAS(text, part) CheckText(__FILE__, __LINE__, (text), (part))
/* The call is refused, and its text says `part`. */
#define REFUSED(call, part) (GIVES(ENGINE_E_USAGE, call), HAS(EngineGetLastError(), (part)))

/* A gate opens once and stays open. */
typedef struct Gate {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  int open;
} Gate;
#define GATE_INIT \
  { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0 }
void GateOpen(Gate* gate);
void GateWait(Gate* gate);

/* Between the two a bulk is not ended by the silence of its owner (bulk_clock.cc). */
void StopBulkClock(void);
void StartBulkClock(void);

/* The library refuses the nth push (from 1) of `rank` of the loopback communicator of this id (loopback_fault.cc). */
void RefuseLoopbackCall(const EngineCommunicatorId* id, int32_t rank, uint64_t nth);

/* An engine with this many workers, everything else at its default. */
EngineHandle NewEngine(int32_t workers);
EngineVar NewVar(EngineHandle engine, const char* name);
/* An op that writes one Var. */
EngineOpDesc Writes(const char* name, const EngineVar* var);

/* Bodies, named after what `param` is or what they do. */
int32_t DoNothing(EngineContext* context, void* param);
int32_t WaitAtGate(EngineContext* context, void* gate);
int32_t OpenGate(EngineContext* context, void* gate);
int32_t CountRun(EngineContext* context, void* atomic_int_counter);
int32_t FailWith7(EngineContext* context, void* param); /* and the text "no seven today" */
/* A deleter. */
void CountDelete(void* atomic_int_counter);

#endif
