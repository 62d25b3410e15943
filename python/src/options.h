// Options: the keywords of engine.init and Engine. Each is a row of the table in engine/options.h.
#pragma once

#include <nanobind/nanobind.h>

#include <map>
#include <string>

#include "engine/engine.h"

namespace engine_python {

// The type of each kind of option in Python; None is allowed too. .ci/tables.py reads these lines.
#define ENGINE_PY_Int "int"
#define ENGINE_PY_Size "int"
#define ENGINE_PY_Micros "float"
#define ENGINE_PY_Millis "float"
#define ENGINE_PY_Text "str"
#define ENGINE_PY_Cpus "Iterable[int]"
#define ENGINE_PY_Pools "dict[str, int | dict[str, Any]]"
#define ENGINE_PY_Devices "Iterable[str]"
#define ENGINE_PY_WorkerHook "Callable[[int], object]"
#define ENGINE_PY_ReportHook "Callable[[str], object]"
#define ENGINE_PY_ErrorHook "Callable[[BaseException], object]"
#define ENGINE_PY_PolicyKind "str"
#define ENGINE_PY_PolicyParameters "dict[str, bool | int]"

// The options that engines have in Python only, in the form of ENGINE_OPTIONS.
#define ENGINE_PY_OPTIONS(X)                    \
  X(Size, max_pending_bytes, 0, AtLeast(0), "", \
    "soft bound, in bytes, on what pending calls of ops keep (Engine.max_pending_bytes); 0: none")

// For signatures: ", workers: int | None = None, ..."
#define ENGINE_PY_KEYWORD(kind, name, ...) ", " #name ": " ENGINE_PY_##kind " | None = None"
#define ENGINE_PY_KEYWORDS ENGINE_OPTIONS(ENGINE_PY_KEYWORD) ENGINE_PY_OPTIONS(ENGINE_PY_KEYWORD)

// What an engine is made with in Python.
struct PyOptions {
  engine::EngineOptions engine;
  size_t max_pending_bytes = 0;
};

// `base`, changed by what the dict `given` says. None leaves an option as it is. TypeError for an unknown keyword.
// Errors begin with `call`, which the program calls.
PyOptions OptionsFrom(nanobind::handle given, engine::EngineOptions base, const std::string& call);
// The parameters as text, which is how front ends give them to policies: {"raise_at_push": True}.
std::map<std::string, std::string> ParameterTexts(nanobind::handle parameters);

}  // namespace engine_python
