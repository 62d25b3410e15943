/* Runs the tests of the C API: all of them, or those named on the command line. */
#include "c_test.h"

void Fail(const char* file, int line, const char* what) {
  fprintf(stderr, "%s:%d: failed: %s\n", file, line, what);
  fflush(stderr);
  _Exit(1);
}

void CheckStatus(const char* file, int line, const char* call, EngineStatus got, EngineStatus wanted) {
  if (got == wanted) return;
  fprintf(stderr, "%s:%d: %s gave %s (%s), not %s\n", file, line, call, EngineStatusName(got), EngineGetLastError(),
          EngineStatusName(wanted));
  fflush(stderr);
  _Exit(1);
}

void CheckText(const char* file, int line, const char* text, const char* part) {
  if (text && strstr(text, part)) return;
  fprintf(stderr, "%s:%d: '%s' does not contain '%s'\n", file, line, text ? text : "(null)", part);
  fflush(stderr);
  _Exit(1);
}

void GateOpen(Gate* gate) {
  pthread_mutex_lock(&gate->mutex);
  gate->open = 1;
  pthread_cond_broadcast(&gate->changed);
  pthread_mutex_unlock(&gate->mutex);
}

void GateWait(Gate* gate) {
  pthread_mutex_lock(&gate->mutex);
  while (!gate->open) pthread_cond_wait(&gate->changed, &gate->mutex);
  pthread_mutex_unlock(&gate->mutex);
}

EngineHandle NewEngine(int32_t workers) {
  EngineConfig config;
  EngineHandle engine = NULL;
  OK(EngineConfigInit(&config, sizeof config));
  config.workers = workers;
  OK(EngineCreate(&config, &engine));
  return engine;
}

EngineVar NewVar(EngineHandle engine, const char* name) {
  EngineVar var = NULL;
  OK(EngineVarNew(engine, name, &var));
  return var;
}

EngineOpDesc Writes(const char* name, const EngineVar* var) {
  EngineOpDesc op = {.struct_size = sizeof op, .name = name, .site = ENGINE_HERE, .writes = var, .num_writes = 1};
  return op;
}

int32_t DoNothing(EngineContext* context, void* param) {
  (void)context, (void)param;
  return 0;
}

int32_t WaitAtGate(EngineContext* context, void* gate) {
  (void)context;
  GateWait(gate);
  return 0;
}

int32_t OpenGate(EngineContext* context, void* gate) {
  (void)context;
  GateOpen(gate);
  return 0;
}

int32_t CountRun(EngineContext* context, void* atomic_int_counter) {
  (void)context;
  atomic_fetch_add((atomic_int*)atomic_int_counter, 1);
  return 0;
}

int32_t FailWith7(EngineContext* context, void* param) {
  (void)param;
  OK(EngineOpSetError(context, "no seven today"));
  return 7;
}

void CountDelete(void* atomic_int_counter) { atomic_fetch_add((atomic_int*)atomic_int_counter, 1); }

int main(int argc, char** argv) {
  const TestCase* tables[] = {kEngineTests, kSetupTests,   kVarTests,  kPushTests, kRefusalTests, kErrorTests,
                              kAsyncTests,  kContextTests, kPlanTests, kGpuTests,  kCommTests};
  int ran = 0;
  for (size_t t = 0; t < sizeof tables / sizeof tables[0]; ++t) {
    for (const TestCase* test = tables[t]; test->name; ++test) {
      int wanted = argc < 2;
      for (int i = 1; i < argc; ++i) wanted |= strcmp(argv[i], test->name) == 0;
      if (!wanted) continue;
      printf("%s\n", test->name);
      fflush(stdout);
      test->run();
      ++ran;
    }
  }
  if (argc >= 2 && ran != argc - 1) {
    fprintf(stderr, "%d of %d tests are in no table\n", argc - 1 - ran, argc - 1);
    return 1;
  }
  printf("%d tests passed\n", ran);
  return 0;
}
