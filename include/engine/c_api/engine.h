/* c_api/engine.h: making and ending an engine, its policy, placements, counters and traces. */
#ifndef ENGINE_C_API_ENGINE_H_
#define ENGINE_C_API_ENGINE_H_

#include "engine/c_api/base.h"

#ifdef __cplusplus
extern "C" {
#endif

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
  int32_t
      workers; /* threads of the default pool; -1: one a core that the program may use, by affinity and quota; 0: ops run inside waits */
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

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* ENGINE_C_API_ENGINE_H_ */
