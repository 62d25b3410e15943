/* c_api/comm.h: communicators and collectives. */
#ifndef ENGINE_C_API_COMM_H_
#define ENGINE_C_API_COMM_H_

#include "engine/c_api/plans.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Collectives between the ranks of a program, as ops; all that comm.h says of them holds here. A communicator is one
 * rank on one device of an engine. On a CUDA device its library is NCCL; on a software device it is loopback, within
 * one process. If the library is missing, making an id or a communicator is refused with ENGINE_E_COMMUNICATOR, and the
 * text names the library. What goes wrong later fails the ops concerned, with that cause, and all later ones of the
 * communicator; the device goes on. */

/* What the ranks have in common: one rank makes it, and sends its bytes to the others. */
typedef struct EngineCommunicatorId {
  uint8_t bytes[128];
} EngineCommunicatorId;
/* Makes an id for communicators on devices of this kind: "cuda", "software". */
ENGINE_API EngineStatus EngineCommunicatorIdNew(const char* kind, EngineCommunicatorId* id);

/* A field left zero takes its default. */
typedef struct EngineCommunicatorOptions {
  size_t struct_size;
  const char* name;   /* for messages; null: "world" */
  EngineSite site;    /* ENGINE_HERE */
  int64_t timeout_ms; /* a collective that has not ended this long after it came first fails the rank; 0: no limit */
  int32_t device;
  int32_t rank;
  int32_t size; /* how many ranks there are; 0: 1 */
  uint32_t reserved;
  EngineCommunicatorId id;
} EngineCommunicatorOptions;
/* Returns at once. The ranks find each other in the first op of the communicator; if it fails, so do all later ones. */
ENGINE_API EngineStatus EngineCommunicatorNew(EngineHandle engine, const EngineCommunicatorOptions* options,
                                              EngineCommunicator* communicator);
/* Makes all ranks of a new communicator in this process: communicators[i] is rank i, on devices[i]. `options` may be
 * null; its device, rank, size and id are left zero. */
ENGINE_API EngineStatus EngineCommunicatorNewAll(EngineHandle engine, const EngineCommunicatorOptions* options,
                                                 const int32_t* devices, int32_t num_devices,
                                                 EngineCommunicator* communicators);
/* Gives the communicator up, also after the engine has gone. The rank leaves behind its pending ops, and waits for
 * nobody. */
ENGINE_API EngineStatus EngineCommunicatorFree(EngineCommunicator communicator);
/* Fails the collectives that were issued and have not ended, and all later ones. Tells the other ranks as far as the
 * library can. */
ENGINE_API EngineStatus EngineCommunicatorAbort(EngineCommunicator communicator, const char* why);
/* Another handle of the Var that every collective of the communicator updates; it must be freed too. */
ENGINE_API EngineStatus EngineCommunicatorVar(EngineCommunicator communicator, EngineVar* var);

typedef struct EngineCommunicatorInfo {
  size_t struct_size;    /* the caller sets it */
  const char* name;      /* kept for the life of the process */
  EnginePlacement place; /* its stream */
  int32_t rank;
  int32_t size;
  uint64_t collectives; /* calls that were issued */
  uint64_t groups;      /* launches that these calls took: one for each push */
} EngineCommunicatorInfo;
ENGINE_API EngineStatus EngineGetCommunicatorInfo(EngineCommunicator communicator, EngineCommunicatorInfo* info);

/* No kind is 0, so that a forgotten one is refused. */
enum {
  ENGINE_ALL_REDUCE = 1,     /* recv = the reduction of every rank's send; both of `count`, maybe the same buffer */
  ENGINE_BROADCAST = 2,      /* recv = send of rank `peer`; the other ranks' send is not used */
  ENGINE_REDUCE_SCATTER = 3, /* recv, of `count`, = this rank's part of the reduction; send: `count` for each rank */
  ENGINE_ALL_GATHER = 4,     /* recv, of `count` for each rank, = every rank's send, of `count`, by rank */
  ENGINE_SEND = 5,           /* to rank `peer` */
  ENGINE_RECV = 6            /* from rank `peer` */
};
enum {
  ENGINE_INT8 = 1,
  ENGINE_UINT8 = 2,
  ENGINE_INT32 = 3,
  ENGINE_UINT32 = 4,
  ENGINE_INT64 = 5,
  ENGINE_UINT64 = 6,
  ENGINE_FLOAT16 = 7,
  ENGINE_FLOAT32 = 8,
  ENGINE_FLOAT64 = 9,
  ENGINE_BFLOAT16 = 10
};
enum { ENGINE_SUM = 0, ENGINE_PRODUCT = 1, ENGINE_MAX = 2, ENGINE_MIN = 3, ENGINE_AVERAGE = 4 };

/* One call. Pointers are device pointers, `count` is in elements. */
typedef struct EngineCollective {
  uint32_t kind;      /* ENGINE_ALL_REDUCE, ... */
  uint32_t type;      /* ENGINE_FLOAT32, ... */
  uint32_t reduction; /* ENGINE_SUM, ... */
  int32_t peer;       /* the root of a broadcast; the other side of a send or recv */
  const void* send;
  void* recv;
  uint64_t count;
} EngineCollective;

/* Pushes `calls`, which are copied, as one op and as one group, as between ncclGroupStart and ncclGroupEnd: all ranks
 * must group alike. `op` names the Vars of the buffers; its place is left zero. `buffers` is what the memory belongs
 * to; its deleter is called once the op has retired. Null: the caller keeps the memory alive. Returns as EnginePush
 * does, and a bulk takes it as it takes EnginePush's op. */
ENGINE_API EngineStatus EnginePushCollectives(EngineCommunicator communicator, const EngineOpDesc* op,
                                              const EngineCollective* calls, int32_t num_calls, void* buffers,
                                              EngineDeleter deleter);
/* The same, recorded in a graph. All ranks must start the runs in the same order. */
ENGINE_API EngineStatus EngineGraphPushCollectives(EngineGraph graph, EngineCommunicator communicator,
                                                   const EngineOpDesc* op, const EngineCollective* calls,
                                                   int32_t num_calls, void* buffers, EngineDeleter deleter);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* ENGINE_C_API_COMM_H_ */
