// An engine with one software device, whose ops are what bulks and HeldOps hold.
#pragma once

#include "engine/spi/held_ops.h"
#include "engine/testing/software_device.h"
#include "support/engine_test.h"

namespace engine::test {

inline EngineOptions OnDevice(EngineOptions options) {
  options.devices = {MakeSoftwareDevice({})};
  return options;
}
inline EngineOptions OnDevice(int workers) { return OnDevice(Quiet(workers)); }

}  // namespace engine::test
