// The MXNet drop-in's options: a line "NAME=value" each, MXNet's variables and the engine's own. UsageError, or options that an
// engine accepts.
#include <cstdlib>
#include <string>
#include <string_view>

#include "core/core.h"
#include "fuzz.h"
#include "options.h"

namespace {

#define ENGINE_VARIABLE(kind, name, initial, allowed, variable, help) variable,
constexpr const char* kNames[] = {ENGINE_OPTIONS(ENGINE_VARIABLE) "MXNET_CPU_WORKER_NTHREADS",
                                  "MXNET_CPU_PRIORITY_NTHREADS", "MXNET_ENGINE_TYPE", "MXNET_CPU_TEMP_COPY",
                                  "ENGINE_MXNET_SCRATCH"};
#undef ENGINE_VARIABLE

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  engine::fuzz::Input input(data, size);
  for (const char* name : kNames)
    if (*name) unsetenv(name);
  std::string told;
  bool asks_for_copies = false;
  while (!input.empty()) {
    const std::string line = input.Line();
    for (const char* name : kNames) {
      if (!*name || !line.starts_with(std::string(name) + "=")) continue;
      setenv(name, line.c_str() + line.find('=') + 1, 1);
      asks_for_copies |= std::string_view(name) == "MXNET_CPU_TEMP_COPY";
    }
    told += line + "\n";
  }
  const std::string copies = asks_for_copies ? std::getenv("MXNET_CPU_TEMP_COPY") : "";
  engine::EngineOptions options;
  try {
    options = engine_mxnet::OptionsFromEnv();
    engine_mxnet::AddPools(options);
    engine_mxnet::CheckEnv();
  } catch (const engine::UsageError&) {
    return 0;
  }
  engine_mxnet::ChooseScratch(options.workers);
  const char* const scratch = std::getenv("MXNET_CPU_TEMP_COPY");
  engine::fuzz::Check(asks_for_copies ? scratch && copies == scratch : !scratch || !engine_mxnet::ScratchIsPrivate(),
                      "the program's own number of spaces stays, and none is set for private ones", told);
  try {
    (void)engine::detail::CheckedOptions(options);
  } catch (const engine::UsageError& error) {
    engine::fuzz::Check(false, error.what(), told);
  }
  return 0;
}
