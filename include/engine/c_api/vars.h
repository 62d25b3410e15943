/* c_api/vars.h: Vars, waits, and cancel scopes. */
#ifndef ENGINE_C_API_VARS_H_
#define ENGINE_C_API_VARS_H_

#include "engine/c_api/base.h"

#ifdef __cplusplus
extern "C" {
#endif

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

/* ---- Waits ------------------------------------------------------------------------------------------------------ */

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

/* ---- Cancel scopes ---------------------------------------------------------------------------------------------- */

/* Ops pushed under a scope are skipped with ENGINE_E_CANCELLED if they have not started when the scope is cancelled. */
ENGINE_API EngineStatus EngineCancelScopeNew(EngineCancelScope* scope);
ENGINE_API EngineStatus EngineCancelScopeCancel(EngineCancelScope scope);
ENGINE_API EngineStatus EngineCancelScopeCancelled(EngineCancelScope scope, int32_t* cancelled);
/* Makes the scope the current one of this thread until the matching Leave. Scopes nest. */
ENGINE_API EngineStatus EngineCancelScopeEnter(EngineCancelScope scope);
ENGINE_API EngineStatus EngineCancelScopeLeave(EngineCancelScope scope);
/* Gives the handle up. Ops and threads that are under the scope stay under it. */
ENGINE_API EngineStatus EngineCancelScopeFree(EngineCancelScope scope);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* ENGINE_C_API_VARS_H_ */
