// EngineOptions::FromEnv: a line "NAME=value" each. UsageError, or options that an engine accepts.
#include <cstdlib>

#include "engine/engine.h"
#include "fuzz.h"
#include "options.h"

namespace {

constexpr const char* kNames[] = {"ENGINE_WORKERS",        "ENGINE_IO_THREADS",   "ENGINE_MAX_PENDING",
                                  "ENGINE_SPIN_US",        "ENGINE_POLICY",       "ENGINE_STALL_TIMEOUT_MS",
                                  "START_NODE_STATS_STEP", "STOP_NODE_STATS_STEP"};

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  engine::fuzz::Input input(data, size);
  for (const char* name : kNames) unsetenv(name);
  std::string told;
  while (!input.empty()) {
    const std::string line = input.Line();
    for (const char* name : kNames)
      if (line.starts_with(std::string(name) + "=")) setenv(name, line.c_str() + line.find('=') + 1, 1);
    told += line + "\n";
  }
  engine::EngineOptions options;
  try {
    options = engine::EngineOptions::FromEnv();
  } catch (const engine::UsageError&) {
    return 0;
  }
  try {
    (void)engine::detail::CheckedOptions(options);
  } catch (const engine::UsageError& error) {
    engine::fuzz::Check(false, error.what(), told);
  }
  return 0;
}
