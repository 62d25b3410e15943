/* Communicators from C, on software devices: what collectives compute, groups, what is refused, what can go wrong. */
#include <sys/wait.h>
#include <unistd.h>

#include "c_test.h"

enum { kRanks = 3, kMost = 24 };

static EngineHandle NewRankEngine(void) {
  const char* const devices[kRanks] = {"software", "software", "software"};
  EngineConfig config;
  EngineHandle engine = NULL;
  OK(EngineConfigInit(&config, sizeof config));
  config.workers = 1;
  config.devices = devices, config.num_devices = kRanks;
  OK(EngineCreate(&config, &engine));
  return engine;
}

/* Memory of a device and the Var that stands for it; `host` is where its values come from and go to. */
typedef struct Buffer {
  int32_t device;
  EngineVar var;
  EngineDeviceMemory memory;
  void* data;
  float host[kMost];
} Buffer;

static int32_t Load(EngineContext* context, void* param) {
  Buffer* b = param;
  OK(EngineContextAllocate(context, sizeof b->host, &b->memory, &b->data));
  OK(EngineContextCopyIn(context, b->data, b->host, sizeof b->host));
  return 0;
}

static int32_t Show(EngineContext* context, void* param) {
  Buffer* b = param;
  OK(EngineContextCopyOut(context, b->host, b->data, sizeof b->host));
  return 0;
}

/* Elements i are `first` + i * `step`. */
static void MakeBuffer(EngineHandle engine, Buffer* b, int32_t device, float first, float step) {
  b->device = device;
  b->var = NewVar(engine, "buffer");
  for (int i = 0; i < kMost; ++i) b->host[i] = first + step * (float)i;
  EngineOpDesc op = Writes("load", &b->var);
  op.place.kind = ENGINE_PLACE_COPY_IN, op.place.index = (uint32_t)device;
  OK(EnginePush(engine, &op, Load, b, NULL));
  OK(EngineWait(engine, b->var, ENGINE_HERE)); /* for the address */
}

static const float* Values(EngineHandle engine, Buffer* b) {
  EngineVar shown = NewVar(engine, "shown");
  EngineOpDesc op = Writes("show", &shown);
  op.reads = &b->var, op.num_reads = 1;
  op.place.kind = ENGINE_PLACE_COPY_OUT, op.place.index = (uint32_t)b->device;
  OK(EnginePush(engine, &op, Show, b, NULL));
  OK(EngineWait(engine, shown, ENGINE_HERE));
  OK(EngineVarFree(shown));
  return b->host;
}

static void FreeBuffer(Buffer* b) {
  OK(EngineDeviceMemoryFree(b->memory));
  OK(EngineVarFree(b->var));
}

static void NewRanks(EngineHandle engine, EngineCommunicator* ranks, int32_t n) {
  const int32_t devices[kRanks] = {0, 1, 2};
  const EngineCommunicatorOptions options = {.struct_size = sizeof options, .name = "data", .site = ENGINE_HERE};
  OK(EngineCommunicatorNewAll(engine, &options, devices, n, ranks));
}

static EngineCollective Call(uint32_t kind, const Buffer* send, const Buffer* recv, uint64_t count) {
  const EngineCollective call = {.kind = kind,
                                 .type = ENGINE_FLOAT32,
                                 .send = send ? send->data : NULL,
                                 .recv = recv ? recv->data : NULL,
                                 .count = count};
  return call;
}

/* An op that reads `in` and writes `out`; one and the same is updated. */
static EngineOpDesc Desc(const char* name, const Buffer* in, const Buffer* out) {
  EngineOpDesc op = {.struct_size = sizeof op, .name = name, .site = ENGINE_HERE};
  if (in) op.reads = &in->var, op.num_reads = 1;
  if (out) op.writes = &out->var, op.num_writes = 1;
  return op;
}

static void AllReduce(EngineCommunicator rank, const Buffer* b, uint64_t count) {
  const EngineOpDesc op = Desc("reduce", b, b);
  const EngineCollective call = Call(ENGINE_ALL_REDUCE, b, b, count);
  OK(EnginePushCollectives(rank, &op, &call, 1, NULL, NULL));
}

/* The op failed, and the text of the wait says all of this. */
static void Failed(EngineHandle engine, const Buffer* b, const char* one, const char* two) {
  GIVES(ENGINE_E_OP, EngineWait(engine, b->var, ENGINE_HERE));
  CHECK(EngineGetLastOpError()->cause == ENGINE_E_COMMUNICATOR);
  HAS(EngineGetLastError(), "communicator 'data'");
  HAS(EngineGetLastError(), one);
  HAS(EngineGetLastError(), two);
}

static void SeeErrors(EngineHandle engine) {
  while (EngineWaitAll(engine) != ENGINE_OK) continue;
}

TEST(EachCollectiveGivesWhatItSays) {
  EngineHandle engine = NewRankEngine();
  EngineCommunicator ranks[kRanks];
  Buffer in[kRanks], sum[kRanks], cast[kRanks], part[kRanks], all[kRanks];
  NewRanks(engine, ranks, kRanks);
  for (int32_t r = 0; r < kRanks; ++r) {
    MakeBuffer(engine, &in[r], r, (float)r, 10);
    MakeBuffer(engine, &sum[r], r, 0, 0);
    MakeBuffer(engine, &cast[r], r, 0, 0);
    MakeBuffer(engine, &part[r], r, 0, 0);
    MakeBuffer(engine, &all[r], r, 0, 0);
    EngineCollective calls[4] = {
        Call(ENGINE_ALL_REDUCE, &in[r], &sum[r], 6), Call(ENGINE_BROADCAST, &in[r], &cast[r], 6),
        Call(ENGINE_REDUCE_SCATTER, &in[r], &part[r], 2), Call(ENGINE_ALL_GATHER, &in[r], &all[r], 6)};
    const Buffer* const outs[4] = {&sum[r], &cast[r], &part[r], &all[r]};
    calls[1].peer = 2;
    calls[2].reduction = ENGINE_MAX;
    for (int i = 0; i < 4; ++i) {
      const EngineOpDesc op = Desc(NULL, &in[r], outs[i]);
      OK(EnginePushCollectives(ranks[r], &op, &calls[i], 1, NULL, NULL));
    }
  }
  for (int r = 0; r < kRanks; ++r) {
    const float *sums = Values(engine, &sum[r]), *casts = Values(engine, &cast[r]), *parts = Values(engine, &part[r]);
    const float* gathered = Values(engine, &all[r]);
    for (int i = 0; i < 6; ++i) {
      CHECK(sums[i] == (float)(3 + 30 * i) && casts[i] == (float)(2 + 10 * i));
      for (int from = 0; from < kRanks; ++from) CHECK(gathered[6 * from + i] == (float)(from + 10 * i));
    }
    CHECK(parts[0] == (float)(2 + 20 * r) && parts[1] == (float)(12 + 20 * r));
    EngineCommunicatorInfo info = {.struct_size = sizeof info};
    OK(EngineGetCommunicatorInfo(ranks[r], &info));
    CHECK(info.rank == r && info.size == kRanks && info.collectives == 4 && info.groups == 4);
    CHECK(strcmp(info.name, "data") == 0 && info.place.kind == ENGINE_PLACE_COMMUNICATOR);
    OK(EngineCommunicatorFree(ranks[r]));
    FreeBuffer(&in[r]), FreeBuffer(&sum[r]), FreeBuffer(&cast[r]), FreeBuffer(&part[r]), FreeBuffer(&all[r]);
  }
  OK(EngineDestroy(engine));
}

/* Each hands its values to the next and takes those of the one before: two calls of one group; recorded, and run twice. */
TEST(AGroupIsOneLaunchAndMayBeRecorded) {
  EngineHandle engine = NewRankEngine();
  EngineCommunicator ranks[kRanks];
  EnginePlan plans[kRanks];
  Buffer mine[kRanks], theirs[kRanks];
  NewRanks(engine, ranks, kRanks);
  for (int32_t r = 0; r < kRanks; ++r) {
    EngineGraph graph;
    MakeBuffer(engine, &mine[r], r, (float)r, 0);
    MakeBuffer(engine, &theirs[r], r, -1, 0);
    EngineCollective calls[2] = {Call(ENGINE_SEND, &mine[r], NULL, 4), Call(ENGINE_RECV, NULL, &theirs[r], 4)};
    calls[0].peer = (r + 1) % kRanks;
    calls[1].peer = (r + kRanks - 1) % kRanks;
    const EngineOpDesc shift = Desc("shift", &mine[r], &theirs[r]), add = Desc("add", &mine[r], &mine[r]);
    const EngineCollective sum = Call(ENGINE_ALL_REDUCE, &mine[r], &mine[r], 4);
    OK(EngineGraphNew(engine, &graph));
    OK(EngineGraphPushCollectives(graph, ranks[r], &shift, calls, 2, NULL, NULL));
    OK(EngineGraphPushCollectives(graph, ranks[r], &add, &sum, 1, NULL, NULL));
    OK(EngineGraphCompile(graph, "step", &plans[r]));
    OK(EngineGraphFree(graph));
  }
  for (int run = 0; run < 2; ++run)
    for (int r = 0; r < kRanks; ++r) OK(EnginePlanStart(plans[r], NULL, ENGINE_HERE, NULL));
  for (int r = 0; r < kRanks; ++r) {
    EngineCommunicatorInfo info = {.struct_size = sizeof info};
    CHECK(Values(engine, &theirs[r])[3] == 3); /* the sum of the first run */
    CHECK(Values(engine, &mine[r])[3] == 9);
    OK(EngineGetCommunicatorInfo(ranks[r], &info));
    CHECK(info.collectives == 6 && info.groups == 4);
    OK(EnginePlanFree(plans[r]));
    OK(EngineCommunicatorFree(ranks[r]));
    FreeBuffer(&mine[r]), FreeBuffer(&theirs[r]);
  }
  OK(EngineDestroy(engine));
}

TEST(RanksThatDoNotFitTogetherAreNamed) {
  EngineHandle engine = NewRankEngine();
  Buffer b[2];
  MakeBuffer(engine, &b[0], 0, 0, 1);
  MakeBuffer(engine, &b[1], 1, 0, 1);
  const struct {
    EngineCollective calls[2];
    const char *one, *two;
  } cases[] = {{{Call(ENGINE_ALL_REDUCE, &b[0], &b[0], 4), Call(ENGINE_ALL_REDUCE, &b[1], &b[1], 8)},
                "all_reduce of 4 float32 (sum)",
                "all_reduce of 8 float32 (sum)"},
               {{Call(ENGINE_ALL_REDUCE, &b[0], &b[0], 4), Call(ENGINE_ALL_GATHER, &b[1], &b[1], 4)},
                "all_reduce of 4 float32 (sum)",
                "all_gather of 4 float32"},
               {{Call(ENGINE_BROADCAST, &b[0], &b[0], 4), Call(ENGINE_BROADCAST, &b[1], &b[1], 4)},
                "broadcast of 4 float32 from rank 0",
                "broadcast of 4 int32 from rank 1"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    EngineCommunicator ranks[2];
    NewRanks(engine, ranks, 2);
    for (int r = 0; r < 2; ++r) {
      const EngineOpDesc op = Desc("reduce", NULL, &b[r]);
      EngineCollective call = cases[i].calls[r];
      if (call.kind == ENGINE_BROADCAST) call.peer = r, call.type = r ? ENGINE_INT32 : ENGINE_FLOAT32;
      OK(EnginePushCollectives(ranks[r], &op, &call, 1, NULL, NULL));
    }
    for (int r = 0; r < 2; ++r) {
      Failed(engine, &b[r], cases[i].one, cases[i].two);
      HAS(EngineGetLastError(), r == 0 ? "rank 0 of 2" : "rank 1 of 2");
      OK(EngineCommunicatorFree(ranks[r]));
    }
    SeeErrors(engine);
  }
  FreeBuffer(&b[0]), FreeBuffer(&b[1]);
  OK(EngineDestroy(engine));
}

TEST(AFaultFailsWhatNeedsTheCollectiveAndNothingElse) {
  EngineHandle engine = NewRankEngine();
  EngineCommunicator ranks[2];
  EngineCommunicatorId id;
  Buffer b[2], apart;
  OK(EngineCommunicatorIdNew("software", &id));
  RefuseLoopbackCall(&id, 0, 2);
  for (int32_t r = 0; r < 2; ++r) {
    const EngineCommunicatorOptions options = {.struct_size = sizeof options,
                                               .name = "data",
                                               .site = ENGINE_HERE,
                                               .device = r,
                                               .rank = r,
                                               .size = 2,
                                               .id = id};
    OK(EngineCommunicatorNew(engine, &options, &ranks[r]));
    MakeBuffer(engine, &b[r], r, 1, 0);
  }
  for (int r = 0; r < 2; ++r) AllReduce(ranks[r], &b[r], 4);
  CHECK(Values(engine, &b[0])[0] == 2 && Values(engine, &b[1])[3] == 2);
  for (int r = 0; r < 2; ++r) AllReduce(ranks[r], &b[r], 4);
  Failed(engine, &b[0], "op 'reduce'", "push 2 of rank 0 is refused");
  Failed(engine, &b[1], "op 'reduce'", "rank 0 was aborted");
  MakeBuffer(engine, &apart, 0, 5, 0);
  CHECK(Values(engine, &apart)[0] == 5);
  SeeErrors(engine);
  for (int r = 0; r < 2; ++r) OK(EngineCommunicatorFree(ranks[r])), FreeBuffer(&b[r]);
  FreeBuffer(&apart);
  OK(EngineDestroy(engine));
}

static void FreeMemory(void* buffer) { OK(EngineDeviceMemoryFree(((Buffer*)buffer)->memory)); }

/* Rank 0 gives its communicator and its buffer up before rank 1 has come. */
TEST(ACommunicatorFreedWithWorkPendingLeavesBehindIt) {
  EngineHandle engine = NewRankEngine();
  EngineCommunicator ranks[2];
  Buffer b[2], out[2];
  NewRanks(engine, ranks, 2);
  for (int32_t r = 0; r < 2; ++r) {
    MakeBuffer(engine, &b[r], r, 1 + (float)r, 1);
    MakeBuffer(engine, &out[r], r, 0, 0);
  }
  for (int r = 0; r < 2; ++r) {
    const EngineOpDesc op = Desc("reduce", &b[r], &out[r]);
    const EngineCollective call = Call(ENGINE_ALL_REDUCE, &b[r], &out[r], 4);
    OK(EnginePushCollectives(ranks[r], &op, &call, 1, &b[r], FreeMemory));
    OK(EngineCommunicatorFree(ranks[r]));
    REFUSED(EnginePushCollectives(ranks[r], &op, &call, 1, NULL, NULL), "communicator handle is not live");
  }
  for (int r = 0; r < 2; ++r) {
    CHECK(Values(engine, &out[r])[3] == 9);
    OK(EngineVarFree(b[r].var));
  }
  OK(EngineWaitAll(engine));
  for (int r = 0; r < 2; ++r) REFUSED(EngineDeviceMemoryFree(b[r].memory), "not live"), FreeBuffer(&out[r]);
  OK(EngineDestroy(engine));
}

TEST(AnAbortEndsWhatWaitsForARankThatNeverComes) {
  EngineHandle engine = NewRankEngine();
  EngineCommunicator ranks[2];
  EngineVar var;
  Buffer b;
  NewRanks(engine, ranks, 2);
  MakeBuffer(engine, &b, 0, 0, 0);
  AllReduce(ranks[0], &b, 4);
  OK(EngineCommunicatorVar(ranks[0], &var));
  OK(EngineCommunicatorAbort(ranks[0], "enough"));
  Failed(engine, &b, "rank 0 of 2", "aborted: enough");
  GIVES(ENGINE_E_OP, EngineWait(engine, var, ENGINE_HERE));
  SeeErrors(engine);
  OK(EngineVarFree(var));
  FreeBuffer(&b);
  OK(EngineDestroy(engine));
  for (int r = 0; r < 2; ++r) OK(EngineCommunicatorFree(ranks[r])); /* after their engine */
}

TEST(AForkedChildIsRefusedItsParentsCommunicator) {
  EngineHandle engine = NewRankEngine();
  EngineCommunicator rank;
  Buffer b;
  NewRanks(engine, &rank, 1);
  MakeBuffer(engine, &b, 0, 1, 0);
  const EngineOpDesc op = Desc("reduce", &b, &b);
  const EngineCollective call = Call(ENGINE_ALL_REDUCE, &b, &b, 4);
  OK(EngineWaitAll(engine));
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    REFUSED(EnginePushCollectives(rank, &op, &call, 1, NULL, NULL), "in a fork's child");
    REFUSED(EngineCommunicatorAbort(rank, "why"), "in a fork's child");
    OK(EngineCommunicatorFree(rank));
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  OK(EnginePushCollectives(rank, &op, &call, 1, NULL, NULL));
  CHECK(Values(engine, &b)[0] == 1);
  OK(EngineCommunicatorFree(rank));
  FreeBuffer(&b);
  OK(EngineDestroy(engine));
}

TEST(CollectivesThatCannotBeCalledAreRefusedAndNamed) {
  EngineHandle engine = NewRankEngine();
  EngineCommunicator rank;
  Buffer b;
  atomic_int deleted = 0;
  NewRanks(engine, &rank, 1);
  MakeBuffer(engine, &b, 0, 0, 0);
  EngineOpDesc op = Desc("bad", &b, &b);
  op.site = (EngineSite){"file.c", 7};
  EngineCollective call = Call(ENGINE_ALL_REDUCE, &b, &b, 4);
#define BAD(n, part) REFUSED(EnginePushCollectives(rank, &op, &call, (n), &deleted, CountDelete), part)
  BAD(-1, "op 'bad' pushed at file.c:7: the number of calls is -1");
  BAD(0, "has no calls");
  call.kind = 0;
  BAD(1, "op 'bad' pushed at file.c:7: calls[0].kind is 0; 1 to 6 are allowed");
  call.kind = ENGINE_ALL_REDUCE, call.type = 0;
  BAD(1, "calls[0].type is 0; 1 to 10 are allowed");
  call.type = ENGINE_FLOAT32, call.reduction = 9;
  BAD(1, "calls[0].reduction is 9; 0 to 4 are allowed");
  call.reduction = ENGINE_SUM, call.recv = NULL;
  BAD(1, "all_reduce has a null receive buffer");
  call.recv = b.data, op.place.kind = ENGINE_PLACE_GPU;
  BAD(1, "has a place");
#undef BAD
  CHECK(atomic_load(&deleted) == 7);
  op.place.kind = ENGINE_PLACE_COMMUNICATOR, op.place.index = 9;
  REFUSED(EnginePush(engine, &op, DoNothing, NULL, NULL), "communicator 9");
  OK(EngineCommunicatorFree(rank));
  FreeBuffer(&b);
  OK(EngineDestroy(engine));
}

TEST(CommunicatorsThatCannotBeMadeAreRefused) {
  EngineHandle engine = NewRankEngine();
  EngineCommunicator made = NULL, all[2];
  EngineCommunicatorOptions options = {.struct_size = sizeof options, .size = 2};
  EngineCommunicatorId id;
  const int32_t devices[2] = {0, 7};
  REFUSED(EngineCommunicatorNew(engine, &options, &made), "its id is empty");
  OK(EngineCommunicatorIdNew("software", &options.id));
  options.rank = 2;
  REFUSED(EngineCommunicatorNew(engine, &options, &made), "rank 2 of 2");
  options.rank = 0, options.timeout_ms = -1;
  REFUSED(EngineCommunicatorNew(engine, &options, &made), "timeout is negative");
  options.timeout_ms = 0, options.reserved = 1;
  REFUSED(EngineCommunicatorNew(engine, &options, &made), "reserved is 1");
  options.reserved = 0, options.struct_size = 8;
  REFUSED(EngineCommunicatorNew(engine, &options, &made), "struct_size is 8");
  REFUSED(EngineCommunicatorNew(engine, NULL, &made), "options is null");
  CHECK(made == NULL);
  options.struct_size = sizeof options;
  REFUSED(EngineCommunicatorNewAll(engine, &options, devices, 2, all), "all ranks have their own");
  REFUSED(EngineCommunicatorNewAll(engine, NULL, devices, 2, all), "no device 7");
  REFUSED(EngineCommunicatorNewAll(engine, NULL, NULL, 0, all), "no devices");
  REFUSED(EngineCommunicatorIdNew("abacus", &id), "abacus");
  /* Without the library: an error of its own, which says what is missing. */
  const EngineStatus nccl = EngineCommunicatorIdNew("cuda", &id);
#ifdef ENGINE_HAS_NCCL
  CHECK(nccl == ENGINE_OK || strstr(EngineGetLastError(), "nccl"));
#else
  CHECK(nccl == ENGINE_E_COMMUNICATOR);
  HAS(EngineGetLastError(), "this build has no NCCL");
#endif
  SeeErrors(engine);
  OK(EngineDestroy(engine));
}

const TestCase kCommTests[] = {CASE(EachCollectiveGivesWhatItSays),
                               CASE(AGroupIsOneLaunchAndMayBeRecorded),
                               CASE(RanksThatDoNotFitTogetherAreNamed),
                               CASE(AFaultFailsWhatNeedsTheCollectiveAndNothingElse),
                               CASE(ACommunicatorFreedWithWorkPendingLeavesBehindIt),
                               CASE(AnAbortEndsWhatWaitsForARankThatNeverComes),
                               CASE(AForkedChildIsRefusedItsParentsCommunicator),
                               CASE(CollectivesThatCannotBeCalledAreRefusedAndNamed),
                               CASE(CommunicatorsThatCannotBeMadeAreRefused),
                               {NULL, NULL}};
