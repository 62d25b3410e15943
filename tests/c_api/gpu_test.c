/* Ops on devices, on the software device: placements, counters, what a body is told, and what is refused. */
#include "c_test.h"

static EngineHandle NewGpuEngine(void) {
  const char* const devices[] = {"software"};
  EngineConfig config;
  EngineHandle engine = NULL;
  OK(EngineConfigInit(&config, sizeof config));
  CHECK(config.streams_per_device >= 1);
  config.workers = 1;
  config.devices = devices, config.num_devices = 1;
  OK(EngineCreate(&config, &engine));
  return engine;
}

static int32_t OnDevice(EngineContext* context, void* param) {
  int32_t defer = 0;
  void* stream = NULL;
  OK(EngineContextDeferSync(context, &defer));
  CHECK(defer == 1);
  REFUSED(EngineContextCudaStream(context, &stream), "software");
  ++*(int*)param;
  return 0;
}

static int32_t OnHost(EngineContext* context, void* param) {
  int32_t defer = 1;
  void* stream = NULL;
  OK(EngineContextDeferSync(context, &defer));
  CHECK(defer == 0);
  REFUSED(EngineContextCudaStream(context, &stream), "not placed on a device");
  ++*(int*)param;
  return 0;
}

TEST(GpuOpsAreIssuedAndRetired) {
  EngineHandle engine = NewGpuEngine();
  EngineVar a = NewVar(engine, "a");
  EngineOpDesc op = Writes("kernel", &a);
  EngineDeviceCounters counters = {.struct_size = sizeof counters};
  int ran = 0;
  op.place.kind = ENGINE_PLACE_GPU;
  OK(EnginePush(engine, &op, OnDevice, &ran, NULL));
  op.gpu_lane = 3; /* the third stream */
  OK(EnginePush(engine, &op, OnDevice, &ran, NULL));
  op.gpu_lane = 0, op.place.kind = ENGINE_PLACE_COPY_IN;
  OK(EnginePush(engine, &op, OnDevice, &ran, NULL));
  op.place.kind = ENGINE_PLACE_CPU;
  OK(EnginePush(engine, &op, OnHost, &ran, NULL));
  OK(EngineWait(engine, a, ENGINE_HERE));
  CHECK(ran == 4);
  OK(EngineWaitAll(engine));
  OK(EngineGetDeviceCounters(engine, &counters));
  CHECK(counters.issued == 3 && counters.retired == 3 && counters.lanes == 3 && counters.host_syncs == 0);
  OK(EngineVarFree(a));
  OK(EngineDestroy(engine));
}

TEST(GpuBulksAreOneDispatchAndHideNothing) {
  EngineHandle engine = NewGpuEngine();
  EngineVar a = NewVar(engine, "a"), b = NewVar(engine, "b");
  EngineOpDesc op = {.struct_size = sizeof op, .name = "op", .updates = &a, .num_updates = 1};
  EngineOpDesc host = Writes("host", &b);
  EngineCounters counters = {.struct_size = sizeof counters};
  int ran = 0, ran_on_host = 0;
  StopBulkClock();
  op.place.kind = ENGINE_PLACE_GPU;
  OK(EngineSetBulkSize(engine, 1000, NULL));
  for (int i = 0; i < 100; ++i) OK(EnginePush(engine, &op, OnDevice, &ran, NULL));
  OK(EnginePush(engine, &host, OnHost, &ran_on_host, NULL)); /* passes by */
  OK(EngineWait(engine, b, ENGINE_HERE));
  CHECK(ran_on_host == 1 && ran == 0);
  OK(EngineWait(engine, a, ENGINE_HERE)); /* releases what is held */
  CHECK(ran == 100);
  OK(EngineSetBulkSize(engine, 0, NULL));
  OK(EngineWaitAll(engine));
  OK(EngineGetCounters(engine, &counters));
  CHECK(counters.dispatches == 2 && counters.completed == 101);
  OK(EngineVarFree(a));
  OK(EngineVarFree(b));
  OK(EngineDestroy(engine));
  StartBulkClock();
}

TEST(GpuBulksThatComeAgainBecomeGraphs) {
  EngineHandle engine = NewGpuEngine();
  EngineVar a = NewVar(engine, "a");
  EngineDeviceCounters counters = {.struct_size = sizeof counters};
  int ran = 0;
  StopBulkClock();
  for (int step = 0; step < 6; ++step) {
    OK(EngineSetBulkSize(engine, 8, NULL));
    for (uint64_t i = 1; i <= 4; ++i) {
      EngineOpDesc op = Writes("layer", &a);
      op.place.kind = ENGINE_PLACE_GPU, op.graph_kind = i, op.flags = ENGINE_OP_ONE_CALL;
      OK(EnginePush(engine, &op, OnDevice, &ran, NULL));
    }
    OK(EngineSetBulkSize(engine, 0, NULL));
    OK(EngineWaitAll(engine));
  }
  OK(EngineGetDeviceCounters(engine, &counters));
  CHECK(counters.issued == 24 && counters.records == 6);
  CHECK(counters.graph_captures == 1);
  OK(EngineVarFree(a));
  OK(EngineDestroy(engine));
  StartBulkClock();
}

TEST(GpuPlansThatAreStaticBecomeGraphs) {
  EngineHandle engine = NewGpuEngine();
  EngineVar a = NewVar(engine, "a");
  EngineDeviceCounters counters = {.struct_size = sizeof counters};
  EnginePlanOptions options = {.struct_size = sizeof options, .name = "step", .flags = ENGINE_PLAN_STATIC_ALLOC};
  EngineGraph graph;
  EnginePlan plan;
  int ran = 0;
  OK(EngineGraphNew(engine, &graph));
  for (uint64_t i = 1; i <= 3; ++i) {
    EngineOpDesc op = Writes("layer", &a);
    op.place.kind = ENGINE_PLACE_GPU, op.graph_kind = i;
    OK(EngineGraphPush(graph, &op, OnDevice, &ran, NULL));
  }
  OK(EngineGraphCompileWith(graph, &options, &plan));
  for (int run = 0; run < 10; ++run) {
    OK(EnginePlanStart(plan, NULL, ENGINE_HERE, NULL));
    OK(EngineWaitAll(engine)); /* so that all runs have one frame */
  }
  OK(EngineGetDeviceCounters(engine, &counters));
  CHECK(counters.graph_launches == 8 && counters.graph_instantiations == 1 && counters.graph_updates == 0);
  CHECK(ran == 9); /* twice for real, once into the graph */
  options.flags = 6;
  REFUSED(EngineGraphCompileWith(graph, &options, &plan), "unknown flags");
  REFUSED(EngineGraphCompileWith(graph, NULL, &plan), "null");
  OK(EnginePlanFree(plan));
  OK(EngineGraphFree(graph));
  OK(EngineVarFree(a));
  OK(EngineDestroy(engine));
}

TEST(GpuPlacementsThatAreNoneAreRefused) {
  EngineHandle engine = NewGpuEngine(), other = NULL;
  EngineVar a = NewVar(engine, "a");
  EngineOpDesc op = Writes("kernel", &a);
  const char *const unknown[] = {"abacus"}, *const absent[] = {"cuda:31"};
  EngineConfig config;
  op.place.kind = ENGINE_PLACE_GPU, op.place.index = 1;
  REFUSED(EnginePush(engine, &op, DoNothing, NULL, NULL), "device 1");
  op.place.index = 0, op.gpu_lane = 1000;
  REFUSED(EnginePush(engine, &op, DoNothing, NULL, NULL), "lane");
  op.place.kind = ENGINE_PLACE_CPU, op.gpu_lane = 1;
  REFUSED(EnginePush(engine, &op, DoNothing, NULL, NULL), "not placed on a GPU");
  OK(EngineConfigInit(&config, sizeof config));
  config.devices = unknown, config.num_devices = 1;
  REFUSED(EngineCreate(&config, &other), "abacus");
  config.devices = absent;
  GIVES(ENGINE_E_DEVICE, EngineCreate(&config, &other));
  config.num_devices = 0, config.streams_per_device = 0;
  REFUSED(EngineCreate(&config, &other), "streams_per_device");
  OK(EngineVarFree(a));
  OK(EngineDestroy(engine));
}

const TestCase kGpuTests[] = {CASE(GpuOpsAreIssuedAndRetired),          CASE(GpuBulksAreOneDispatchAndHideNothing),
                              CASE(GpuBulksThatComeAgainBecomeGraphs),  CASE(GpuPlansThatAreStaticBecomeGraphs),
                              CASE(GpuPlacementsThatAreNoneAreRefused), {NULL, NULL}};
