/* c_api/base.h: statuses, errors, and the handles of all areas. engine/c_api.h has the conventions. */
#ifndef ENGINE_C_API_BASE_H_
#define ENGINE_C_API_BASE_H_

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

/* ---- Handles ---------------------------------------------------------------------------------------------------- */

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

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* ENGINE_C_API_BASE_H_ */
