/* c_api.h: the engine for C and for everything that calls C.
 *
 *   EngineHandle eng;
 *   EngineVar a;
 *   EngineCreate(NULL, &eng);
 *   EngineVarNew(eng, "a", &a);
 *   EngineOpDesc op = {.struct_size = sizeof op, .name = "load", .site = ENGINE_HERE, .writes = &a, .num_writes = 1};
 *   EnginePush(eng, &op, Load, buffer, free);
 *   if (EngineWait(eng, a, ENGINE_HERE) != ENGINE_OK) fputs(EngineGetLastError(), stderr);
 *   EngineVarFree(a);
 *   EngineDestroy(eng);
 *
 * Conventions, for every function:
 *   Status     0 is success, negative an error, positive an answer that is no error (timeout, "not now"). An error
 *              leaves its text in EngineGetLastError and, if an op failed, its details in EngineGetLastOpError: both
 *              belong to the calling thread. A refused call (ENGINE_E_USAGE) has changed nothing.
 *   Handles    are opaque and never addresses. A null, freed, deleted or mistyped handle is refused, never followed.
 *              Any thread may use any handle, but no handle that another thread may be freeing meanwhile.
 *   Structs    that may grow begin with struct_size = sizeof the struct that the caller was compiled with. Fields
 *              that an older caller does not know take their defaults; fields of a newer caller that the library
 *              does not know are refused if they are set.
 *   Arrays     come with a signed count. A negative count is refused; a null array is fine if its count is 0.
 *   Text       is UTF-8 and copied. Names and file names are kept for the life of the process, once for each
 *              distinct text: so name the operation, without a running number.
 *   Results    are stored through the last pointer, and only on success. A char* belongs to the caller
 *              (EngineStringFree), a const char* does not.
 *   Parameters that are passed with a function are released by their deleter, which may be null, exactly once: after
 *              the last use, also when the op is skipped, cancelled or refused. The one exception is
 *              ENGINE_WOULD_BLOCK: the parameter stays the caller's, who may try again. A deleter may run on any
 *              thread, must not wait, and must not leave by a C++ exception or longjmp.
 *   Exceptions never leave the library. A body written in C++ may throw: that fails its op.
 *   fork       needs no call: docs/concepts.md says what a child keeps.
 *   Symbols    carry the version that introduced them (ENGINE_0.1); the meaning of a symbol does not change.
 *
 * Order, errors, waiting and shutdown are those of engine.h, whose comments say more.
 */
#ifndef ENGINE_C_API_H_
#define ENGINE_C_API_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define ENGINE_API __attribute__((visibility("default")))
#else
#define ENGINE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Status and errors ---------------------------------------------------------------------------------------- */

#define ENGINE_C_API_VERSION 5 /* grows by one with every addition */

typedef int32_t EngineStatus;
enum {
  ENGINE_OK = 0,
  ENGINE_TIMEOUT = 1,     /* the time of a wait ran out */
  ENGINE_WOULD_BLOCK = 2, /* EngineTryPush: the soft bound on pending ops is reached */

  ENGINE_E_USAGE = -1,        /* the call cannot be honoured; nothing was changed */
  ENGINE_E_OP = -2,           /* an op failed: EngineGetLastOpError says which */
  ENGINE_E_BACKPRESSURE = -3, /* the hard bound on pending ops is reached */
  ENGINE_E_NOMEM = -4,        /* there was no memory for it */
  ENGINE_E_IO = -5,           /* a file could not be written */

  /* Mostly met as EngineOpError.cause: why an op failed. */
  ENGINE_E_BODY = -6,           /* its function returned a nonzero status, or its completion was failed */
  ENGINE_E_EXCEPTION = -7,      /* a C++ exception */
  ENGINE_E_CANCELLED = -8,      /* its cancel scope was cancelled before it started */
  ENGINE_E_SHUTDOWN = -9,       /* the engine ended before its completion came */
  ENGINE_E_FORKED = -10,        /* pending in the parent when this process was forked */
  ENGINE_E_COMPLETION = -11,    /* a completion dropped uncalled, called twice, or used after its last reference */
  ENGINE_E_COMMUNICATOR = -12,  /* a collective failed: no library, another rank failed, a timeout, an abort */
  ENGINE_E_DEADLINE = -13,      /* the deadline of its run had passed before it started */
  ENGINE_E_DEVICE = -14,        /* a call of a device failed, the device was lost, or there is no such device */
  ENGINE_E_STAGE_TIMEOUT = -15, /* an item waited too long for room in its stage, or a consumer for an item */
  ENGINE_E_END_OF_DATA = -16    /* there is no more data */
};

/* Where a call stands in the caller's source. {NULL, 0}: unknown. */
typedef struct EngineSite {
  const char* file;
  uint32_t line;
} EngineSite;
#ifdef __cplusplus
#define ENGINE_HERE (EngineSite{__FILE__, __LINE__})
#define ENGINE_NOWHERE (EngineSite{0, 0})
#else
#define ENGINE_HERE ((EngineSite){__FILE__, __LINE__})
#define ENGINE_NOWHERE ((EngineSite){0, 0})
#endif

/* An op through which an error passed on its way to the Var that was waited for. */
typedef struct EngineHop {
  const char* op;
  EngineSite site;
} EngineHop;

/* What is known about a failed op. The library makes it, and struct_size says which fields it has. */
typedef struct EngineOpError {
  size_t struct_size;
  const char* text;   /* the whole error as text */
  const char* op;     /* name of the op that failed first */
  EngineSite site;    /* where it was pushed */
  EngineStatus cause; /* ENGINE_E_BODY, ENGINE_E_EXCEPTION, ... */
  int32_t code;       /* ENGINE_E_BODY: the status that its function returned or its completion was failed with */
  const char* cause_text;
  const EngineHop* hops; /* skipped ops that passed the error on, first to last */
  int32_t num_hops;
} EngineOpError;

/* Text of the last error on this thread; "" before the first. Valid until this thread's next error. */
ENGINE_API const char* EngineGetLastError(void);
/* Details of the last error on this thread if an op failed (ENGINE_E_OP), else null. Valid as long as the text. */
ENGINE_API const EngineOpError* EngineGetLastOpError(void);
/* "ENGINE_E_USAGE" and so on; "unknown status" for a number that is no status. */
ENGINE_API const char* EngineStatusName(EngineStatus status);
/* Version of the library that is loaded, "major.minor.patch", and its ENGINE_C_API_VERSION. */
ENGINE_API const char* EngineVersion(void);
ENGINE_API int32_t EngineCApiVersion(void);
/* Frees text that the library gave away. Null is fine. */
ENGINE_API void EngineStringFree(char* text);

/* ---- Handles -------------------------------------------------------------------------------------------------- */

typedef struct EngineHandleOpaque* EngineHandle;
typedef struct EngineVarOpaque* EngineVar;
typedef struct EngineOperatorOpaque* EngineOperator;
typedef struct EngineHeldOpaque* EngineHeld;
typedef struct EngineCompletionOpaque* EngineCompletion;
typedef struct EngineCancelScopeOpaque* EngineCancelScope;
typedef struct EngineGraphOpaque* EngineGraph;
typedef struct EnginePlanOpaque* EnginePlan;
typedef struct EngineRunOpaque* EngineRun;
typedef struct EngineDeviceMemoryOpaque* EngineDeviceMemory;
typedef struct EngineCommunicatorOpaque* EngineCommunicator;
typedef struct EngineContext EngineContext; /* what a body asks while it runs; an address, valid only inside the body */

/* ---- Engine --------------------------------------------------------------------------------------------------- */

typedef void (*EngineWorkerHook)(void* arg, int32_t worker);
typedef void (*EngineReportHook)(void* arg, const char* report);
typedef void (*EngineErrorHook)(void* arg, const EngineOpError* error); /* `error` is valid inside the call */

/* A named set of threads beside the default pool. Every element of an array has the same struct_size. */
typedef struct EnginePoolConfig {
  size_t struct_size;
  const char* name;
  int32_t threads;
  int32_t num_cpus; /* affinity: thread i runs on cpus[i % num_cpus]; 0: anywhere */
  const int32_t* cpus;
  EngineWorkerHook on_start; /* on each worker, before its first op */
  void* on_start_arg;
  EngineWorkerHook on_end; /* on each worker, after its last op */
  void* on_end_arg;
} EnginePoolConfig;

/* Call EngineConfigInit or EngineConfigFromEnv before you set fields: zero is a legal value of many of them. The fields
 * are those of engine::EngineOptions (options.h). Hook arguments must outlive the engine. */
typedef struct EngineConfig {
  size_t struct_size;
  int32_t workers;          /* threads of the default pool; -1: one a core; 0: ops run inside waits */
  int32_t intra_op_threads; /* threads of EngineContextParallelFor; -1: as many as workers */
  int32_t io_threads;
  int32_t max_spare_threads; /* stand-ins for workers whose op waits */
  const int32_t* cpus;       /* affinity of the default pool */
  int32_t num_cpus;
  int32_t num_pools;
  const EnginePoolConfig* pools;
  EngineWorkerHook on_start; /* hooks of the default pool */
  void* on_start_arg;
  EngineWorkerHook on_end;
  void* on_end_arg;
  const char* thread_name;   /* prefix of the threads' names */
  const char* policy;        /* as for EngineSetPolicy */
  int64_t max_pending;       /* soft bound: a push from outside of ops waits */
  int64_t hard_max_pending;  /* hard bound: every push is refused with ENGINE_E_BACKPRESSURE */
  int64_t spin_us;           /* longest idle spin; 0: none */
  int64_t drain_timeout_ms;  /* how long a shutdown waits for completions that do not come */
  int64_t stall_timeout_ms;  /* watchdog; 0: none */
  EngineReportHook on_stall; /* null: stderr */
  void* on_stall_arg;
  EngineErrorHook on_unobserved; /* gets, at shutdown, the errors that nobody waited for; null: stderr */
  void* on_unobserved_arg;
  const char* const* devices; /* device i of ENGINE_PLACE_GPU: "cuda", "cuda:1", "software" */
  int32_t num_devices;        /* 0: the CUDA devices of the machine, each made on first use */
  int32_t streams_per_device; /* how many streams serve the ops that ask for no stream */
  int32_t start_step;         /* cost_model: first run of a plan that is measured */
  int32_t stop_step;          /* cost_model: first run of a plan that is not measured any more; more than start_step */
} EngineConfig;

/* Sets every field that fits in `struct_size` (pass sizeof *config) to its default. */
ENGINE_API EngineStatus EngineConfigInit(EngineConfig* config, size_t struct_size);
/* As EngineConfigInit; then sets what the environment says (ENGINE_WORKERS and so on, see options.h). */
ENGINE_API EngineStatus EngineConfigFromEnv(EngineConfig* config, size_t struct_size);

/* Makes an engine. A null `config` means all defaults. */
ENGINE_API EngineStatus EngineCreate(const EngineConfig* config, EngineHandle* engine);
/* Settles every op exactly once, joins the threads, reports unseen errors, and refuses pushes from then on. Refused on
 * one of the engine's own workers. Releases the held ops that are left, and frees their handles. A second call does
 * nothing. */
ENGINE_API EngineStatus EngineShutdown(EngineHandle engine);
/* Shuts the engine down and frees the handle. Handles of Vars, operators, completions, scopes, device memory and
 * communicators stay valid and must still be freed. Refused on one of the engine's own workers; the handle stays valid
 * then. */
ENGINE_API EngineStatus EngineDestroy(EngineHandle engine);
/* Stop: workers finish the ops that they run and are joined; pushes queue up. Start: makes the workers again. Both may
 * be repeated. */
ENGINE_API EngineStatus EngineStop(EngineHandle engine);
ENGINE_API EngineStatus EngineStart(EngineHandle engine);

/* The policy of ops that are pushed from now on: its name, then its parameters where they are not as by default, for instance
 * "naive", "naive:raise_at_push=true" (a push returns the ENGINE_E_OP of its own op) or
 * "inline:intra_op_threads=2,smart_stage=false". EngineGetPolicy's text lives as long as the process. */
ENGINE_API EngineStatus EngineSetPolicy(EngineHandle engine, const char* policy);
ENGINE_API EngineStatus EngineGetPolicy(EngineHandle engine, const char** policy);
/* The policies by number, from 0; ENGINE_E_USAGE past the last. `help` may be null. */
ENGINE_API EngineStatus EnginePolicyAt(int32_t index, const char** name, const char** help);

typedef struct EnginePlacement {
  uint32_t kind;  /* ENGINE_PLACE_... */
  uint32_t index; /* number of the pool, of the device, or of the communicator */
} EnginePlacement;
enum {
  ENGINE_PLACE_CPU = 0,     /* the default pool */
  ENGINE_PLACE_POOL = 1,    /* a named pool; get it from EnginePool */
  ENGINE_PLACE_IO = 2,      /* the I/O pool, for work that blocks */
  ENGINE_PLACE_COPY_IN = 3, /* copy lanes: one thread for each direction, in push order */
  ENGINE_PLACE_COPY_OUT = 4,
  ENGINE_PLACE_GPU =
      5, /* a device: the body issues work on its stream and does not wait for it (EngineOpDesc.gpu_lane) */
  ENGINE_PLACE_COMMUNICATOR = 6 /* a communicator's stream; get it from EngineGetCommunicatorInfo */
};
/* The placement of a named pool. */
ENGINE_API EngineStatus EnginePool(EngineHandle engine, const char* name, EnginePlacement* place);
/* Threads of the default pool. */
ENGINE_API EngineStatus EngineWorkers(EngineHandle engine, int32_t* workers);

/* Counters since the engine was made (engine::EngineStats). The caller sets struct_size. */
typedef struct EngineCounters {
  size_t struct_size;
  uint64_t pushed;
  uint64_t completed;
  uint64_t skipped;
  uint64_t inlined;
  uint64_t stolen;
  uint64_t wakeups;
  uint64_t sleeps;
  uint64_t spare_threads;
  uint64_t slab_bytes;
  uint64_t slab_allocations;
  uint64_t unseen_errors;
  uint64_t backpressure_waits;
  uint64_t dispatches; /* a bulk is one, unless it was split; any other op is one */
} EngineCounters;
ENGINE_API EngineStatus EngineGetCounters(EngineHandle engine, EngineCounters* counters);

/* What the engine asked of its devices since it was made (engine::DeviceStats). The caller sets struct_size. */
typedef struct EngineDeviceCounters {
  size_t struct_size;
  uint64_t issued;  /* ops whose order is on a device, and whose Vars have been released */
  uint64_t retired; /* issued ops that are known to have ended */
  uint64_t records;
  uint64_t waits; /* waits of one stream for another */
  uint64_t waits_elided;
  uint64_t events;
  uint64_t queries;
  uint64_t host_waits; /* times that a host op or a wait was put aside until a device got there */
  uint64_t host_syncs; /* times that a thread waited for a device because memory ran out; it does so nowhere else */
  uint64_t lanes;
  uint64_t graph_captures;
  uint64_t graph_instantiations;
  uint64_t graph_updates;
  uint64_t graph_launches;
} EngineDeviceCounters;
ENGINE_API EngineStatus EngineGetDeviceCounters(EngineHandle engine, EngineDeviceCounters* counters);

ENGINE_API EngineStatus EngineTraceStart(EngineHandle engine);
/* Ends the trace and returns it as Chrome trace-event JSON: in the file `path` unless that is null, and as text unless
 * `json` is null. If the file cannot be opened, the call is refused (ENGINE_E_IO) and the trace goes on. */
ENGINE_API EngineStatus EngineTraceStop(EngineHandle engine, const char* path, char** json);

/* What is pending and why, for people: blocked Vars, their ops, completions that have not come. */
ENGINE_API EngineStatus EngineDescribePending(EngineHandle engine, char** text);

/* ---- Vars ----------------------------------------------------------------------------------------------------- */

/* `name` may be null. */
ENGINE_API EngineStatus EngineVarNew(EngineHandle engine, const char* name, EngineVar* var);
/* Another handle of the same variable; it must be freed too. */
ENGINE_API EngineStatus EngineVarCopy(EngineVar var, EngineVar* copy);
/* Gives this handle up. When the last handle goes, the variable ends behind the ops that are pending on it. */
ENGINE_API EngineStatus EngineVarFree(EngineVar var);
/* Ends the variable behind the ops that are pending on it, and gives this handle up. From now on other handles of the
 * variable are refused; they must still be freed. */
ENGINE_API EngineStatus EngineVarDelete(EngineHandle engine, EngineVar var);
/* How many writes have completed; failed and skipped ones count too. */
ENGINE_API EngineStatus EngineVarVersion(EngineVar var, uint64_t* version);
/* Valid as long as the handle. */
ENGINE_API EngineStatus EngineVarName(EngineVar var, const char** name);

/* ---- Ops ------------------------------------------------------------------------------------------------------ */

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

/* ---- Graphs and plans ----------------------------------------------------------------------------------------- */

/* A graph records pushes instead of running them; a plan runs them any number of times, as one op on all their Vars.
 * See graph.h and plan.h. Recorded functions must be able to run more than once, and concurrently with themselves;
 * their deleters run when the graph and its plans are gone. A graph is used by one thread at a time. */
ENGINE_API EngineStatus EngineGraphNew(EngineHandle engine, EngineGraph* graph);
ENGINE_API EngineStatus EngineGraphPush(EngineGraph graph, const EngineOpDesc* op, EngineSyncFn fn, void* param,
                                        EngineDeleter deleter);
ENGINE_API EngineStatus EngineGraphPushAsync(EngineGraph graph, const EngineOpDesc* op, EngineAsyncFn fn, void* param,
                                             EngineDeleter deleter);
/* Op number `before` of the graph (from 0) ends before op number `after` starts. EngineGraphCompile refuses a cycle. */
ENGINE_API EngineStatus EngineGraphOrder(EngineGraph graph, uint32_t before, uint32_t after);
/* `name` may be null. The graph may be used and compiled again. */
ENGINE_API EngineStatus EngineGraphCompile(EngineGraph graph, const char* name, EnginePlan* plan);
/* How a graph is compiled. A field left zero takes its default. */
typedef struct EnginePlanOptions {
  size_t struct_size;
  const char* name;  /* null: "plan" */
  uint32_t flags;    /* ENGINE_PLAN_... */
  uint32_t reserved; /* 0 */
} EnginePlanOptions;
enum {
  /* The memory that the functions work on has the same address in every run. If ops on one GPU lane all have a
   * graph_kind, they are launched as one device graph from the third run on. */
  ENGINE_PLAN_STATIC_ALLOC = 1
};
ENGINE_API EngineStatus EngineGraphCompileWith(EngineGraph graph, const EnginePlanOptions* options, EnginePlan* plan);
ENGINE_API EngineStatus EngineGraphFree(EngineGraph graph);

/* Starts a run and returns at once. A null `policy` means the engine's. Runs overlap as far as their Vars allow. `run`
 * may be null: then the Vars, or EngineWaitAll, tell how the run went. */
ENGINE_API EngineStatus EnginePlanStart(EnginePlan plan, const char* policy, EngineSite site, EngineRun* run);
/* How a run is started. A field left zero takes its default. */
typedef struct EngineRunOptions {
  size_t struct_size;
  const char* policy;       /* a policy's name; null: the engine's */
  EngineCancelScope cancel; /* nodes that have not begun are skipped when it is cancelled; null: none */
  int64_t deadline_ns;      /* nodes that have not begun after so long are skipped with ENGINE_E_DEADLINE; 0: none */
  int32_t has_priority;     /* 0: the run has the highest priority of its nodes */
  int32_t priority;         /* else: of the whole run among ready ops, -2 to 2 */
} EngineRunOptions;
ENGINE_API EngineStatus EnginePlanStartWith(EnginePlan plan, const EngineRunOptions* options, EngineSite site,
                                            EngineRun* run);
/* Describe: one line for each task. Dot: the graph in Graphviz's language. */
ENGINE_API EngineStatus EnginePlanDescribe(EnginePlan plan, char** text);
ENGINE_API EngineStatus EnginePlanDot(EnginePlan plan, char** text);
ENGINE_API EngineStatus EnginePlanFree(EnginePlan plan);
/* Waits until every op of the run has settled. EngineRunWait may run ops of the run meanwhile, on the waiting thread.
 * ENGINE_E_OP if ops failed; the error is that of the failed op that was recorded first. */
ENGINE_API EngineStatus EngineRunWait(EngineRun run, EngineSite site);
ENGINE_API EngineStatus EngineRunWaitFor(EngineRun run, int64_t timeout_ns, EngineSite site);
/* Gives the handle up. The run goes on. */
ENGINE_API EngineStatus EngineRunFree(EngineRun run);

/* ---- Inside a body -------------------------------------------------------------------------------------------- */

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

/* ---- Completions ---------------------------------------------------------------------------------------------- */

/* An asynchronous op ends when its completion is done or failed: once, on any thread, before or after its body returns.
 * The handle counts references; Done, Fail and Release each give one up, also when they return an error. If the last
 * reference goes and the op was not ended, the op fails. Completions may outlive their engine. */
ENGINE_API EngineStatus EngineCompletionDone(EngineCompletion done);
/* `message` may be null. */
ENGINE_API EngineStatus EngineCompletionFail(EngineCompletion done, int32_t code, const char* message);
/* Takes one more reference. */
ENGINE_API EngineStatus EngineCompletionRetain(EngineCompletion done);
ENGINE_API EngineStatus EngineCompletionRelease(EngineCompletion done);

/* ---- Waits ---------------------------------------------------------------------------------------------------- */

/* Waits until every write of `var` that has been pushed so far has ended. ENGINE_E_OP, at every call, if `var` is
 * poisoned. Inside an op, a wait for a Var that the op itself names is refused. */
ENGINE_API EngineStatus EngineWait(EngineHandle engine, EngineVar var, EngineSite site);
/* As EngineWait, but ENGINE_TIMEOUT after `timeout_ns`. A negative time is refused. */
ENGINE_API EngineStatus EngineWaitFor(EngineHandle engine, EngineVar var, int64_t timeout_ns, EngineSite site);
/* Waits for the writers and the readers of `var`: afterwards the host may reuse what the Var stands for. */
ENGINE_API EngineStatus EngineWaitToWrite(EngineHandle engine, EngineVar var, EngineSite site);
/* Waits until every push that returned before this call has ended; then returns the first error that nobody has seen
 * yet. Refused inside an op. */
ENGINE_API EngineStatus EngineWaitAll(EngineHandle engine);
ENGINE_API EngineStatus EngineWaitAllFor(EngineHandle engine, int64_t timeout_ns);
/* Clears the error of `var` in order, keeping its value and version. */
ENGINE_API EngineStatus EngineClearError(EngineHandle engine, EngineVar var, EngineSite site);

/* ---- Cancel scopes -------------------------------------------------------------------------------------------- */

/* Ops pushed under a scope are skipped with ENGINE_E_CANCELLED if they have not started when the scope is cancelled. */
ENGINE_API EngineStatus EngineCancelScopeNew(EngineCancelScope* scope);
ENGINE_API EngineStatus EngineCancelScopeCancel(EngineCancelScope scope);
ENGINE_API EngineStatus EngineCancelScopeCancelled(EngineCancelScope scope, int32_t* cancelled);
/* Makes the scope the current one of this thread until the matching Leave. Scopes nest. */
ENGINE_API EngineStatus EngineCancelScopeEnter(EngineCancelScope scope);
ENGINE_API EngineStatus EngineCancelScopeLeave(EngineCancelScope scope);
/* Gives the handle up. Ops and threads that are under the scope stay under it. */
ENGINE_API EngineStatus EngineCancelScopeFree(EngineCancelScope scope);

/* ---- Communicators -------------------------------------------------------------------------------------------- */

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

#endif /* ENGINE_C_API_H_ */
