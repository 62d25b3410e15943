// EngineConfig: the options of an engine in the C API, one field for each row of the table in engine/options.h.
//
// Threads: pure functions. Ownership: texts in a config that the library fills live as long as the process.
// Errors:  UsageError.
#pragma once

#include "c_api/internal.h"

namespace engine::capi {

EngineConfig ToConfig(const EngineOptions& options);
// Returns the defaults for a null config, and for fields that an older caller does not know.
EngineOptions ReadConfig(const EngineConfig* given);

}  // namespace engine::capi
