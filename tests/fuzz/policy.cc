// Policies by name with parameters as text, devices and communicators by name: UsageError (CommunicatorError, DeviceError where
// something is missing), or something that the engine accepts and that reads the same when it is asked for again.
#include <map>

#include "engine/comm.h"
#include "engine/device/device.h"
#include "engine/policy.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  engine::fuzz::Input input(data, size);
  const uint8_t what = input.Byte() % 4;
  const std::string name = input.Line();
  try {
    if (what == 0) {
      if (!name.starts_with("software"))
        (void)engine::MakeDevice(name);  // that one has threads, and takes any input's time
    } else if (what == 1) {
      const engine::CommunicatorId a = engine::NewCommunicatorId(name), b = engine::NewCommunicatorId(name);
      engine::fuzz::Check(!(a == b), "two communicators of one id", name);
    } else {
      std::map<std::string, std::string> parameters;
      while (!input.empty()) {
        const std::string key = input.Line();
        parameters[key] = input.Line();
      }
      const engine::PolicyChoice choice = engine::MakePolicy(name, parameters);
      engine::fuzz::Check(engine::PolicyName(choice.policy) == name, "another policy", name);
      engine::CheckPolicy(choice);
    }
  } catch (const engine::UsageError&) {
  } catch (const engine::CommunicatorError&) {
  } catch (const engine::DeviceError&) {
  }
  return 0;
}
