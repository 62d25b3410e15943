/* c_api/ops.h: pushing ops, what a body may ask, and completions. */
#ifndef ENGINE_C_API_OPS_H_
#define ENGINE_C_API_OPS_H_

#include "engine/c_api/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What an op is. A field left zero takes its default. A Var that is named several times counts once, in its strongest
 * mode; a read or an update together with a write is an update. The struct is read during the call only. */
typedef struct EngineOpDesc {
  size_t struct_size;
  const char* name; /* null: "" */
  EngineSite site;  /* ENGINE_HERE */
  const EngineVar* reads;
  const EngineVar* updates; /* the op sees the value and changes it */
  const EngineVar* writes;  /* the op replaces the value without looking at it; a successful write clears an error */
  int32_t num_reads;
  int32_t num_updates;
  int32_t num_writes;
  int32_t priority; /* higher first among ready ops, -2 to 2 */
  EnginePlacement place;
  uint32_t flags;           /* ENGINE_OP_... */
  uint32_t reserved;        /* 0 */
  EngineCancelScope cancel; /* null: the calling thread's current scope, if it has one */
  uint64_t graph_kind;    /* on a device: what the op does, for bulks that become graphs (engine::GraphKey); 0: never */
  uint64_t graph_params;  /* the op's pointers and scalars, as a hash or a version */
  uint32_t gpu_lane;      /* ENGINE_PLACE_GPU: 0: the engine chooses a stream; n: stream n - 1 of the device */
  uint32_t reserved_lane; /* 0 */
} EngineOpDesc;

enum {
  ENGINE_OP_RUN_ALWAYS = 1, /* the op runs even if an input is poisoned or its scope is cancelled */
  ENGINE_OP_ONE_CALL = 2    /* with graph_kind: the body issues exactly one kernel or copy */
};

/* A synchronous body. Nonzero fails the op with that code, and with the text given to EngineOpSetError. */
typedef int32_t (*EngineSyncFn)(EngineContext* context, void* param);
/* An asynchronous body: it owns one reference of `done` (see Completions). */
typedef void (*EngineAsyncFn)(EngineContext* context, EngineCompletion done, void* param);
typedef void (*EngineDeleter)(void* param);

/* Pushes an op. Returns at once, except that a push from outside of ops waits at the soft bound on pending ops. */
ENGINE_API EngineStatus EnginePush(EngineHandle engine, const EngineOpDesc* op, EngineSyncFn fn, void* param,
                                   EngineDeleter deleter);
ENGINE_API EngineStatus EnginePushAsync(EngineHandle engine, const EngineOpDesc* op, EngineAsyncFn fn, void* param,
                                        EngineDeleter deleter);
/* As above, but return ENGINE_WOULD_BLOCK where those would wait; the parameter then stays the caller's. */
ENGINE_API EngineStatus EngineTryPush(EngineHandle engine, const EngineOpDesc* op, EngineSyncFn fn, void* param,
                                      EngineDeleter deleter);
ENGINE_API EngineStatus EngineTryPushAsync(EngineHandle engine, const EngineOpDesc* op, EngineAsyncFn fn, void* param,
                                           EngineDeleter deleter);

/* Takes the op's place in the order. The op starts after EngineHeldRelease, which also frees the handle. */
ENGINE_API EngineStatus EnginePushHeld(EngineHandle engine, const EngineOpDesc* op, EngineSyncFn fn, void* param,
                                       EngineDeleter deleter, EngineHeld* held);
ENGINE_API EngineStatus EngineHeldRelease(EngineHeld held);

/* An op that is registered once and pushed often. All pushes share `param`, and may run concurrently. The deleter runs
 * when the handle has been freed and the last push has run. */
ENGINE_API EngineStatus EngineOperatorNew(EngineHandle engine, const EngineOpDesc* op, EngineSyncFn fn, void* param,
                                          EngineDeleter deleter, EngineOperator* result);
ENGINE_API EngineStatus EngineOperatorNewAsync(EngineHandle engine, const EngineOpDesc* op, EngineAsyncFn fn,
                                               void* param, EngineDeleter deleter, EngineOperator* result);
ENGINE_API EngineStatus EngineOperatorPush(EngineHandle engine, EngineOperator op, EngineSite site);
/* The same, with another priority than the description's. */
ENGINE_API EngineStatus EngineOperatorPushPriority(EngineHandle engine, EngineOperator op, int32_t priority,
                                                   EngineSite site);
ENGINE_API EngineStatus EngineOperatorFree(EngineOperator op);

/* Sets the bulk size of the calling thread on `engine`: synchronous ops for a device that it pushes from now on
 * (EnginePush, EngineTryPush) start together, up to `size` as one dispatch. 0 and 1, as at first: each op starts by
 * itself. The bulk size changes speed only: order, errors, names and waits are those of each op (see bulk.h).
 * `previous`, which may be null, gets the size before. A size below 0 or above 1048576 is refused. */
ENGINE_API EngineStatus EngineSetBulkSize(EngineHandle engine, int32_t size, int32_t* previous);

/* ---- Inside a body ---------------------------------------------------------------------------------------------- */

ENGINE_API EngineStatus EngineContextName(const EngineContext* context, const char** name);
/* Index of the worker in its pool; -1 if a caller's thread runs the op. */
ENGINE_API EngineStatus EngineContextWorker(const EngineContext* context, int32_t* worker);
/* The version of `var` that this op sees (read) or makes (update, write). */
ENGINE_API EngineStatus EngineContextVersion(const EngineContext* context, EngineVar var, uint64_t* version);
/* 1 if the op's cancel scope has been cancelled, else 0. */
ENGINE_API EngineStatus EngineContextCancelled(const EngineContext* context, int32_t* cancelled);
/* 1 on a device: the body must not synchronize, because whoever needs the result waits for it. 0 elsewhere. */
ENGINE_API EngineStatus EngineContextDeferSync(const EngineContext* context, int32_t* defer);
/* The op's stream, a cudaStream_t. Refused for an op on a device of another kind, or on no device. */
ENGINE_API EngineStatus EngineContextCudaStream(const EngineContext* context, void** stream);
/* Memory of the op's device, from the engine's pool. `data` is its address. This op and the ops behind it may use the
 * memory at once (see device_memory.h). EngineDeviceMemoryFree gives it back: behind the op, if it is called in the
 * body of an op on the device or by the deleter of an op's parameter; elsewhere behind all that has been issued. A
 * handle may outlive its engine. */
ENGINE_API EngineStatus EngineContextAllocate(EngineContext* context, uint64_t bytes, EngineDeviceMemory* memory,
                                              void** data);
ENGINE_API EngineStatus EngineDeviceMemoryFree(EngineDeviceMemory memory);
/* Copies between the host and the op's device, on the op's stream. If the host memory is not pinned, the copy is over
 * when the call returns. */
ENGINE_API EngineStatus EngineContextCopyIn(EngineContext* context, void* to_device, const void* from_host,
                                            uint64_t bytes);
ENGINE_API EngineStatus EngineContextCopyOut(EngineContext* context, void* to_host, const void* from_device,
                                             uint64_t bytes);
/* Runs fn(arg, begin, end) over [0, n) in pieces of at least `grain` (0: 1) on the pool's threads, and returns when all
 * pieces are done. If a piece returns nonzero, the call returns ENGINE_E_BODY, and pieces that have not started may be
 * left out. */
typedef int32_t (*EngineRangeFn)(void* arg, int64_t begin, int64_t end);
ENGINE_API EngineStatus EngineContextParallelFor(EngineContext* context, int64_t n, int64_t grain, EngineRangeFn fn,
                                                 void* arg);
/* Sets the text of the error for a synchronous body that goes on to return nonzero. The last call counts. */
ENGINE_API EngineStatus EngineOpSetError(EngineContext* context, const char* message);

/* ---- Completions ------------------------------------------------------------------------------------------------ */

/* An asynchronous op ends when its completion is done or failed: once, on any thread, before or after its body returns.
 * The handle counts references; Done, Fail and Release each give one up, also when they return an error. If the last
 * reference goes and the op was not ended, the op fails. Completions may outlive their engine. */
ENGINE_API EngineStatus EngineCompletionDone(EngineCompletion done);
/* `message` may be null. */
ENGINE_API EngineStatus EngineCompletionFail(EngineCompletion done, int32_t code, const char* message);
/* Takes one more reference. */
ENGINE_API EngineStatus EngineCompletionRetain(EngineCompletion done);
ENGINE_API EngineStatus EngineCompletionRelease(EngineCompletion done);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* ENGINE_C_API_OPS_H_ */
