// The MXNet drop-in's options: a line "NAME=value" each, MXNet's variables and the engine's own. UsageError, or options that an
// engine accepts.
#include <cstdlib>
#include <string>

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
  const std::string told = engine::fuzz::SetEnvironment(input, kNames);
  const char* const asked = std::getenv("MXNET_CPU_TEMP_COPY");
  const std::string copies = asked ? asked : "";
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
  engine::fuzz::Check(asked ? scratch && copies == scratch : !scratch || !engine_mxnet::ScratchIsPrivate(),
                      "the program's own number of spaces stays, and none is set for private ones", told);
  try {
    (void)engine::detail::CheckedOptions(options);
  } catch (const engine::UsageError& error) {
    engine::fuzz::Check(false, error.what(), told);
  }
  return 0;
}
