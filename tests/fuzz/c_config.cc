// EngineCreate: a config of any numbers and texts is refused with a text, or gives an engine that runs an op and ends.
#include <algorithm>
#include <cstring>
#include <vector>

#include "engine/c_api.h"
#include "fuzz.h"

using engine::fuzz::Check;

namespace {

int32_t Body(EngineContext*, void* ran) {
  *static_cast<bool*>(ran) = true;
  return 0;
}

// As it comes if it should be refused, else few: each is a thread.
int32_t Few(uint8_t byte) { return byte < 250 ? byte % 4 : static_cast<int32_t>(byte - 252) * 100'000; }

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  engine::fuzz::Input input(data, size);
  EngineConfig config;
  Check(EngineConfigInit(&config, sizeof config) == ENGINE_OK, "EngineConfigInit", "");
  config.workers = Few(input.Byte());
  config.intra_op_threads = Few(input.Byte());
  config.io_threads = Few(input.Byte());
  config.max_spare_threads = Few(input.Byte());
  config.streams_per_device = input.Byte();
  config.max_pending = static_cast<int64_t>(input.Number());
  config.hard_max_pending = static_cast<int64_t>(input.Number());
  // In seconds, not as long as can be said: what overflows is options_test's.
  config.spin_us = static_cast<int32_t>(input.Number()) % 1000;
  config.drain_timeout_ms = static_cast<int32_t>(input.Number());
  config.stall_timeout_ms = static_cast<int32_t>(input.Number());
  std::vector<int32_t> cpus;
  for (int n = input.Byte() % 4; n > 0; --n) cpus.push_back(static_cast<int32_t>(input.Number()));
  config.cpus = cpus.data();
  config.num_cpus = static_cast<int32_t>(cpus.size());
  const std::string policy = input.Line(), thread = input.Line();
  if (!policy.empty()) config.policy = policy.c_str();
  if (!thread.empty()) config.thread_name = thread.c_str();
  std::vector<std::string> names;
  std::vector<EnginePoolConfig> pools;
  std::vector<const char*> devices;
  while (!input.empty() && names.size() < 12) names.push_back(input.Line());
  for (const std::string& name : names) {
    if (name.starts_with("dev ")) {
      devices.push_back(name.c_str() + 4);
      continue;
    }
    EnginePoolConfig pool;
    std::memset(&pool, 0, sizeof pool);
    // A size beyond the struct would be a lie that nobody can see through.
    pool.struct_size = name.starts_with("!") ? name.size() % (sizeof pool + 1) : sizeof pool;
    pool.name = name.c_str();
    pool.threads = static_cast<int32_t>(name.size() % 4);
    pools.push_back(pool);
  }
  config.pools = pools.data();
  config.num_pools = static_cast<int32_t>(pools.size());
  config.devices = devices.data();
  config.num_devices = static_cast<int32_t>(devices.size());

  EngineHandle engine = nullptr;
  if (EngineCreate(&config, &engine) != ENGINE_OK) {
    Check(*EngineGetLastError() != '\0', "refused without a text", "");
    return 0;
  }
  EnginePlacement place;
  for (const EnginePoolConfig& pool : pools)
    Check(EnginePool(engine, pool.name, &place) == ENGINE_OK, "a pool that is not there", pool.name);
  bool ran = false;
  EngineVar var;
  Check(EngineVarNew(engine, thread.c_str(), &var) == ENGINE_OK, "EngineVarNew", thread);
  EngineOpDesc op;
  std::memset(&op, 0, sizeof op);
  op.struct_size = sizeof op;
  op.name = policy.c_str();
  op.writes = &var;
  op.num_writes = 1;
  Check(EnginePush(engine, &op, Body, &ran, nullptr) == ENGINE_OK, "EnginePush", EngineGetLastError());
  Check(EngineWait(engine, var, ENGINE_NOWHERE) == ENGINE_OK && ran, "EngineWait", EngineGetLastError());
  EngineVarFree(var);
  Check(EngineDestroy(engine) == ENGINE_OK, "EngineDestroy", EngineGetLastError());
  return 0;
}
