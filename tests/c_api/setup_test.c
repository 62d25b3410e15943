/* What an engine is made with: the config struct, pools, hooks, policies. */
#include "c_test.h"

TEST(ConfigInitGivesTheDefaults) {
  EngineConfig config;
  memset(&config, 0x5a, sizeof config);
  OK(EngineConfigInit(&config, sizeof config));
  CHECK(config.struct_size == sizeof config && config.workers == -1 && config.max_pending == 16384);
  CHECK(config.start_step == 100 && config.stop_step == 200 && config.spin_us == 50 && config.stall_timeout_ms == 0);
  CHECK(config.pools == NULL && config.num_pools == 0 && config.on_stall == NULL);
  CHECK(strcmp(config.policy, "threaded") == 0 && strcmp(config.thread_name, "engine") == 0);
}

TEST(ConfigFromEnvReadsTheEnvironment) {
  EngineConfig config;
  setenv("ENGINE_WORKERS", "3", 1);
  OK(EngineConfigFromEnv(&config, sizeof config));
  CHECK(config.workers == 3 && config.max_pending == 16384);
  setenv("ENGINE_WORKERS", "many", 1);
  REFUSED(EngineConfigFromEnv(&config, sizeof config), "ENGINE_WORKERS");
  unsetenv("ENGINE_WORKERS");
}

/* A caller that was compiled with a later header. */
typedef struct NewerConfig {
  EngineConfig known;
  int64_t unknown;
} NewerConfig;

TEST(NewerCallerIsServedUnlessItSetsAnUnknownField) {
  NewerConfig config;
  EngineHandle engine = NULL;
  memset(&config, 0x5a, sizeof config);
  OK(EngineConfigInit(&config.known, sizeof config));
  CHECK(config.known.struct_size == sizeof config && config.unknown == 0);
  OK(EngineCreate(&config.known, &engine));
  OK(EngineDestroy(engine));
  config.unknown = 1;
  REFUSED(EngineCreate(&config.known, &engine), "does not know");
}

TEST(StructSizesBelowTheFirstVersionAreRefused) {
  EngineConfig config;
  EngineHandle engine = NULL;
  REFUSED(EngineConfigInit(&config, 8), "EngineConfig.struct_size is 8");
  OK(EngineConfigInit(&config, sizeof config));
  config.struct_size = 0;
  REFUSED(EngineCreate(&config, &engine), "EngineConfig.struct_size is 0");
  CHECK(engine == NULL);
}

static void CheckRefusedConfig(const EngineConfig* config, const char* part) {
  EngineHandle engine = NULL;
  REFUSED(EngineCreate(config, &engine), part);
  CHECK(engine == NULL);
}

TEST(ImpossibleConfigsAreRefused) {
  EngineConfig config, defaults;
  const EnginePoolConfig nameless = {.struct_size = sizeof nameless, .threads = 1};
  OK(EngineConfigInit(&defaults, sizeof defaults));
  REFUSED(EngineCreate(&defaults, NULL), "EngineCreate: the result is null");
  config = defaults, config.num_cpus = -1;
  CheckRefusedConfig(&config, "the number of cpus is -1");
  config = defaults, config.num_cpus = 2;
  CheckRefusedConfig(&config, "the array of 2 cpus is null");
  config = defaults, config.num_pools = -2;
  CheckRefusedConfig(&config, "the number of pools is -2");
  config = defaults, config.num_pools = 1, config.pools = &nameless;
  CheckRefusedConfig(&config, "name is null");
  config = defaults, config.max_pending = -5;
  CheckRefusedConfig(&config, "max_pending is -5");
  config = defaults, config.spin_us = -1;
  CheckRefusedConfig(&config, "spin_us is -1");
  config = defaults, config.policy = "anarchy";
  CheckRefusedConfig(&config, "anarchy");
  config = defaults, config.policy = "threaded:raise_at_push=true";
  CheckRefusedConfig(&config, "that is for 'naive'");
  config = defaults, config.policy = "inline:intra_op_threads=256";
  CheckRefusedConfig(&config, "1 to 255 is allowed");
  config = defaults, config.hard_max_pending = 1;
  CheckRefusedConfig(&config, "allowed: max_pending, which is 16384, and more");
  config = defaults, config.streams_per_device = 33;
  CheckRefusedConfig(&config, "streams_per_device = 33; allowed: 1 to 32");
  config = defaults, config.start_step = -1;
  CheckRefusedConfig(&config, "start_step = -1; allowed: 0 to 16777215");
  config = defaults, config.workers = -7;
  CheckRefusedConfig(&config, "workers");
}

TEST(StepsAreCheckedWhenCostModelIsChosen) {
  EngineConfig config;
  EngineHandle engine = NULL;
  const char* policy = NULL;
  OK(EngineConfigInit(&config, sizeof config));
  config.workers = 1, config.start_step = 8, config.stop_step = 8;
  OK(EngineCreate(&config, &engine));
  REFUSED(EngineSetPolicy(engine, "cost_model"), "start_step = 8 and stop_step = 8");
  OK(EngineGetPolicy(engine, &policy));
  CHECK(strcmp(policy, "threaded") == 0);
  OK(EngineSetPolicy(engine, "cost_model:start_step=3,stop_step=5"));
  OK(EngineGetPolicy(engine, &policy));
  CHECK(strcmp(policy, "cost_model:start_step=3,stop_step=5") == 0);
  OK(EngineDestroy(engine));
  config.policy = "cost_model";
  CheckRefusedConfig(&config, "start_step = 8 and stop_step = 8");
  config.stop_step = 9;
  OK(EngineCreate(&config, &engine));
  OK(EngineDestroy(engine));
}

TEST(OlderCallersGetTheDefaultsOfFieldsThatTheyDoNotKnow) {
  EngineConfig config;
  EngineHandle engine = NULL;
  OK(EngineConfigInit(&config, sizeof config));
  config.workers = 1, config.policy = "cost_model", config.start_step = config.stop_step = -7;
  config.struct_size = offsetof(EngineConfig, start_step);
  OK(EngineCreate(&config, &engine));
  OK(EngineDestroy(engine));
}

static void CountHook(void* counter, int32_t worker) {
  CHECK(worker >= 0);
  atomic_fetch_add((atomic_int*)counter, 1);
}

TEST(NamedPoolsRunTheirOpsAndTheirHooks) {
  atomic_int started = 0, ended = 0, pool_started = 0, pool_ended = 0;
  const EnginePoolConfig pools[] = {{.struct_size = sizeof pools[0], .name = "parse", .threads = 1},
                                    {.struct_size = sizeof pools[0],
                                     .name = "hash",
                                     .threads = 2,
                                     .on_start = CountHook,
                                     .on_start_arg = &pool_started,
                                     .on_end = CountHook,
                                     .on_end_arg = &pool_ended}};
  EngineConfig config;
  EngineHandle engine = NULL;
  EnginePlacement hash = {0, 0}, none = {0, 0};
  Gate gate = GATE_INIT;
  OK(EngineConfigInit(&config, sizeof config));
  config.workers = 1;
  config.pools = pools;
  config.num_pools = 2;
  config.on_start = config.on_end = CountHook;
  config.on_start_arg = &started;
  config.on_end_arg = &ended;
  OK(EngineCreate(&config, &engine));
  OK(EnginePool(engine, "hash", &hash));
  CHECK(hash.kind == ENGINE_PLACE_POOL);
  REFUSED(EnginePool(engine, "cooking", &none), "hash"); /* the text lists the pools there are */
  EngineVar a = NewVar(engine, "a"), b = NewVar(engine, "b");
  EngineOpDesc waits = Writes("waits", &a), opens = Writes("opens", &b);
  waits.place = opens.place = hash; /* two ops that need both threads of the pool */
  OK(EnginePush(engine, &waits, WaitAtGate, &gate, NULL));
  OK(EnginePush(engine, &opens, OpenGate, &gate, NULL));
  OK(EngineWait(engine, a, ENGINE_HERE));
  OK(EngineVarFree(a));
  OK(EngineVarFree(b));
  OK(EngineDestroy(engine));
  CHECK(atomic_load(&started) == 1 && atomic_load(&ended) == 1);
  CHECK(atomic_load(&pool_started) == 2 && atomic_load(&pool_ended) == 2);
}

TEST(PoliciesAreListedAndSetByName) {
  EngineHandle engine = NewEngine(1);
  const char *name = NULL, *help = NULL;
  int naive = 0;
  for (int32_t i = 0; EnginePolicyAt(i, &name, &help) == ENGINE_OK; ++i) naive |= strcmp(name, "naive") == 0;
  CHECK(naive);
  REFUSED(EnginePolicyAt(-1, &name, NULL), "no policy -1");
  const char* policy = NULL;
  OK(EngineGetPolicy(engine, &policy));
  CHECK(strcmp(policy, "threaded") == 0);
  OK(EngineSetPolicy(engine, "inline:smart_stage=0,intra_op_threads=2"));
  OK(EngineGetPolicy(engine, &policy));
  CHECK(strcmp(policy, "inline:intra_op_threads=2,smart_stage=false") == 0);
  OK(EngineSetPolicy(engine, policy));
  OK(EngineSetPolicy(engine, "naive:"));
  REFUSED(EngineSetPolicy(engine, "anarchy"), "threaded");
  REFUSED(EngineSetPolicy(engine, NULL), "null");
  REFUSED(EngineSetPolicy(engine, "naive:8"), "write NAME:PARAMETER=VALUE");
  REFUSED(EngineSetPolicy(engine, "naive:smart_stage=1,smart_stage=0"), "twice");
  REFUSED(EngineSetPolicy(engine, "inline:threads=2"), "takes no 'threads'");
  OK(EngineGetPolicy(engine, &policy));
  CHECK(strcmp(policy, "naive") == 0);
  OK(EngineDestroy(engine));
}

TEST(NaivePolicyRunsInsideThePushAndCanRaiseThere) {
  EngineHandle engine = NewEngine(1);
  EngineVar a = NewVar(engine, "a");
  EngineOpDesc op = Writes("write", &a);
  atomic_int runs = 0, deleted = 0;
  OK(EngineSetPolicy(engine, "naive:raise_at_push=true"));
  OK(EnginePush(engine, &op, CountRun, &runs, NULL));
  CHECK(atomic_load(&runs) == 1);
  GIVES(ENGINE_E_OP, EnginePush(engine, &op, FailWith7, &deleted, CountDelete));
  HAS(EngineGetLastOpError()->cause_text, "no seven today");
  CHECK(atomic_load(&deleted) == 1);
  GIVES(ENGINE_E_OP, EngineWait(engine, a, ENGINE_HERE)); /* and poisons as usual */
  OK(EngineVarFree(a));
  OK(EngineDestroy(engine));
}

typedef struct Heard {
  Gate gate;
  atomic_int calls;
  char text[4096];
} Heard;

static void HearReport(void* arg, const char* report) {
  Heard* heard = arg;
  if (atomic_fetch_add(&heard->calls, 1) > 0) return;
  snprintf(heard->text, sizeof heard->text, "%s", report);
  GateOpen(&heard->gate);
}

TEST(StallReportGoesToTheHook) {
  Heard heard = {.gate = GATE_INIT};
  Gate gate = GATE_INIT;
  EngineConfig config;
  EngineHandle engine = NULL;
  OK(EngineConfigInit(&config, sizeof config));
  config.workers = 1;
  config.stall_timeout_ms = 1;
  config.on_stall = HearReport;
  config.on_stall_arg = &heard;
  OK(EngineCreate(&config, &engine));
  EngineVar a = NewVar(engine, "a");
  EngineOpDesc op = Writes("stalled_op", &a);
  OK(EnginePush(engine, &op, WaitAtGate, &gate, NULL));
  GateWait(&heard.gate);
  HAS(heard.text, "stalled_op");
  GateOpen(&gate);
  OK(EngineVarFree(a));
  OK(EngineDestroy(engine));
}

static void HearError(void* arg, const EngineOpError* error) {
  Heard* heard = arg;
  atomic_fetch_add(&heard->calls, 1);
  CHECK(error->struct_size == sizeof *error && error->cause == ENGINE_E_BODY && error->code == 7);
  CHECK(strcmp(error->op, "fail") == 0);
  snprintf(heard->text, sizeof heard->text, "%s", error->text);
}

TEST(ErrorsNobodyWaitedForGoToTheHookAtShutdown) {
  Heard heard = {.gate = GATE_INIT};
  EngineConfig config;
  EngineHandle engine = NULL;
  EngineOpDesc op = {.struct_size = sizeof op, .name = "fail", .site = ENGINE_HERE};
  OK(EngineConfigInit(&config, sizeof config));
  config.workers = 1;
  config.on_unobserved = HearError;
  config.on_unobserved_arg = &heard;
  OK(EngineCreate(&config, &engine));
  OK(EnginePush(engine, &op, FailWith7, NULL, NULL));
  OK(EngineDestroy(engine));
  CHECK(atomic_load(&heard.calls) == 1);
  HAS(heard.text, "no seven today");
}

const TestCase kSetupTests[] = {CASE(ConfigInitGivesTheDefaults),
                                CASE(ConfigFromEnvReadsTheEnvironment),
                                CASE(NewerCallerIsServedUnlessItSetsAnUnknownField),
                                CASE(StructSizesBelowTheFirstVersionAreRefused),
                                CASE(ImpossibleConfigsAreRefused),
                                CASE(StepsAreCheckedWhenCostModelIsChosen),
                                CASE(OlderCallersGetTheDefaultsOfFieldsThatTheyDoNotKnow),
                                CASE(NamedPoolsRunTheirOpsAndTheirHooks),
                                CASE(PoliciesAreListedAndSetByName),
                                CASE(NaivePolicyRunsInsideThePushAndCanRaiseThere),
                                CASE(StallReportGoesToTheHook),
                                CASE(ErrorsNobodyWaitedForGoToTheHookAtShutdown),
                                {NULL, NULL}};
