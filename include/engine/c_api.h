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
 *
 * Areas, each a header under engine/c_api/; this one includes them all:
 *   base.h     statuses, errors, handles
 *   engine.h   making and ending an engine, its policy, placements, counters and traces
 *   vars.h     Vars, waits, cancel scopes
 *   ops.h      pushing ops, what a body may ask, completions
 *   plans.h    graphs, plans, and their runs
 *   comm.h     communicators and collectives
 */
#ifndef ENGINE_C_API_H_
#define ENGINE_C_API_H_

#include "engine/c_api/base.h"
#include "engine/c_api/comm.h"
#include "engine/c_api/engine.h"
#include "engine/c_api/ops.h"
#include "engine/c_api/plans.h"
#include "engine/c_api/vars.h"

#endif /* ENGINE_C_API_H_ */
