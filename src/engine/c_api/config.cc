#include "c_api/config.h"

#include <algorithm>
#include <concepts>
#include <limits>
#include <utility>

namespace engine::capi {
namespace {

// ---- the fields of each kind of option. The engine checks values itself; only what it cannot see is checked here.

#define ENGINE_SINGLE(action, name, field) action(options.name, #field, config.field)
#define ENGINE_FIELDS_Int(action, name) ENGINE_SINGLE(action, name, name)
#define ENGINE_FIELDS_Size(action, name) ENGINE_SINGLE(action, name, name)
#define ENGINE_FIELDS_Micros(action, name) ENGINE_SINGLE(action, name, name##_us)
#define ENGINE_FIELDS_Millis(action, name) ENGINE_SINGLE(action, name, name##_ms)
#define ENGINE_FIELDS_Text(action, name) ENGINE_SINGLE(action, name, name)
// Two options of the engine, one text here.
#define ENGINE_FIELDS_PolicyKind(action, name) action(options, #name, config.name)
#define ENGINE_FIELDS_PolicyParameters(action, name)
#define ENGINE_FIELDS_Cpus(action, name) action(options.name, #name, config.name, config.num_##name)
#define ENGINE_FIELDS_Pools(action, name) action(options.name, #name, config.name, config.num_##name)
#define ENGINE_FIELDS_Devices(action, name) action(options.name, #name, config.name, config.num_##name)
#define ENGINE_FIELDS_WorkerHook(action, name) action(options.name, #name, config.name, config.name##_arg)
#define ENGINE_FIELDS_ReportHook(action, name) action(options.name, #name, config.name, config.name##_arg)
#define ENGINE_FIELDS_ErrorHook(action, name) action(options.name, #name, config.name, config.name##_arg)

// ---- from C

// An int32_t, or an int64_t where an int32_t would leave a hole at the end of EngineConfig.
template <std::signed_integral Number>
void Read(int& option, const char* field, Number given) {
  if (!std::in_range<int>(given))
    throw UsageError(std::string(field) + " is " + std::to_string(given) + "; allowed: -2147483648 to 2147483647");
  option = static_cast<int>(given);
}
void Read(size_t& option, const char* field, int64_t given) { option = static_cast<size_t>(NotNegative(given, field)); }
template <class Rep, class Period>
void Read(std::chrono::duration<Rep, Period>& option, const char* field, int64_t given) {
  option = std::chrono::duration<Rep, Period>(NotNegative(given, field));
}
void Read(std::string& option, const char*, const char* given) {
  if (given) option = given;
}
void Read(EngineOptions& options, const char*, const char* given) {
  if (!given) return;
  const PolicyChoice choice = ParsePolicy(given);
  options.policy = choice.policy;
  options.policy_options = choice.options;
}
void Read(std::vector<int>& option, const char* field, const int32_t* cpus, int32_t count) {
  option.assign(cpus, cpus + CheckedCount(count, cpus, field));
}
void Read(option::WorkerHook& option, const char*, EngineWorkerHook hook, void* arg) {
  if (hook) option = [hook, arg](int worker) { hook(arg, worker); };
}
void Read(option::ReportHook& option, const char*, EngineReportHook hook, void* arg) {
  if (hook) option = [hook, arg](std::string_view report) { hook(arg, std::string(report).c_str()); };
}
void Read(option::ErrorHook& option, const char*, EngineErrorHook hook, void* arg) {
  if (hook) option = [hook, arg](const OpError& error) { hook(arg, OpErrorText(error).view()); };
}
void Read(option::Devices& option, const char* field, const char* const* names, int32_t count) {
  const size_t n = CheckedCount(count, names, field);
  for (size_t i = 0; i < n; ++i) option.push_back(MakeDevice(&Required(names[i], "a device's name")));
}
void Read(option::Pools& option, const char* field, const EnginePoolConfig* pools, int32_t count) {
  const auto* at = reinterpret_cast<const unsigned char*>(pools);
  const size_t n = CheckedCount(count, pools, field);
  for (size_t i = 0; i < n; ++i, at += pools->struct_size) {
    const auto& given = *reinterpret_cast<const EnginePoolConfig*>(at);
    if (given.struct_size != pools->struct_size)
      throw UsageError("pools[" + std::to_string(i) + "].struct_size is " + std::to_string(given.struct_size) +
                       ", that of pools[0] is " + std::to_string(pools->struct_size) + "; all must be equal");
    EnginePoolConfig config = {};
    ReadStruct(given, config, "EnginePoolConfig");
    PoolOptions& options = option.emplace_back();
    options.name = &Required(config.name, "a pool's name");
    options.threads = config.threads;
    ENGINE_FIELDS_Cpus(Read, cpus);
    ENGINE_FIELDS_WorkerHook(Read, on_start);
    ENGINE_FIELDS_WorkerHook(Read, on_end);
  }
}

// ---- to C: fields whose default is not zero

template <std::signed_integral Number>
void Write(int option, const char*, Number& field) {
  field = option;
}
void Write(size_t option, const char*, int64_t& field) {
  field = static_cast<int64_t>(std::min<size_t>(option, std::numeric_limits<int64_t>::max()));
}
template <class Rep, class Period>
void Write(std::chrono::duration<Rep, Period> option, const char*, int64_t& field) {
  field = option.count();
}
void Write(const std::string& option, const char*, const char*& field) { field = Name::Intern(option).c_str(); }
void Write(const EngineOptions& options, const char*, const char*& field) {
  field = Name::Intern(PolicyText({options.policy, options.policy_options})).c_str();
}
template <class Option, class Pointer, class Second>
void Write(const Option&, const char*, Pointer& field, Second& second) {
  field = nullptr, second = {};
}

}  // namespace

EngineConfig ToConfig(const EngineOptions& options) {
  EngineConfig config = {};
  config.struct_size = sizeof config;
#define ENGINE_WRITE_OPTION(kind, name, ...) ENGINE_FIELDS_##kind(Write, name);
  ENGINE_OPTIONS(ENGINE_WRITE_OPTION)
#undef ENGINE_WRITE_OPTION
#define ENGINE_SIZE_OF(option, text, field, ...) +sizeof(field) __VA_OPT__(+sizeof(__VA_ARGS__))
#define ENGINE_ADD_SIZE(kind, name, ...) ENGINE_FIELDS_##kind(ENGINE_SIZE_OF, name)
  static_assert(sizeof config == sizeof config.struct_size ENGINE_OPTIONS(ENGINE_ADD_SIZE),
                "a field of EngineConfig that no row of ENGINE_OPTIONS stands for, or a hole between two fields, or at "
                "the end behind an int32_t: an int64_t leaves none");
#undef ENGINE_ADD_SIZE
#undef ENGINE_SIZE_OF
  return config;
}

EngineOptions ReadConfig(const EngineConfig* given) {
  EngineOptions options;
  if (!given) return options;
  EngineConfig config = ToConfig(options);
  ReadStruct(*given, config, "EngineConfig");
#define ENGINE_READ_OPTION(kind, name, ...) ENGINE_FIELDS_##kind(Read, name);
  ENGINE_OPTIONS(ENGINE_READ_OPTION)
#undef ENGINE_READ_OPTION
  return options;
}

}  // namespace engine::capi

using namespace engine::capi;  // NOLINT: this file defines its C face

EngineStatus EngineConfigInit(EngineConfig* config, size_t struct_size) {
  return ToStatus(__func__,
                  [&] { WriteStruct(ToConfig({}), Required(config, "the config"), struct_size, "EngineConfig"); });
}

EngineStatus EngineConfigFromEnv(EngineConfig* config, size_t struct_size) {
  return ToStatus(__func__, [&] {
    WriteStruct(ToConfig(engine::EngineOptions::FromEnv()), Required(config, "the config"), struct_size,
                "EngineConfig");
  });
}
