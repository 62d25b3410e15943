// EngineOptions::FromEnv: a line "NAME=value" each. UsageError, or options that an engine accepts.
#include "core/core.h"
#include "engine/engine.h"
#include "fuzz.h"

namespace {

// Of each option; "" where it has none.
#define ENGINE_VARIABLE(kind, name, initial, allowed, variable, help) variable,
constexpr const char* kNames[] = {ENGINE_OPTIONS(ENGINE_VARIABLE)};
#undef ENGINE_VARIABLE

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  engine::fuzz::Input input(data, size);
  const std::string told = engine::fuzz::SetEnvironment(input, kNames);
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
