// Devices in a fork's child: they stay with the parent.
#include <sys/wait.h>

#include "device_test.h"
#include "engine/device/device_memory.h"
#include "support/child.h"

namespace engine::test {
namespace {

TEST(DeviceFaults, DevicesAreLostInAForksChild) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's threads do not survive a fork";
  Rig rig;
  Var a = rig.eng().NewVar("a"), b = rig.eng().NewVar("b");
  rig.Push({.writes = {b}});
  rig.eng().WaitAll();
  const uint64_t hold = rig.PushHeldKernel({.writes = {a}});
  const pid_t child = fork();
  if (child == 0) {
    int status = 0;
    try {
      rig.eng().Wait(a);
      status |= 1;
    } catch (const OpError&) {
    }
    try {
      rig.Push({.writes = {a}});
      status |= 2;
    } catch (const UsageError&) {
    }
    try {
      rig.eng().Wait(b);
      rig.eng().Push({.writes = {a}}, [] {});
      rig.eng().Wait(a);
    } catch (...) {
      status |= 4;
    }
    _exit(status);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  rig.device().Release(hold);
  rig.eng().Wait(a);
}

TEST(DeviceFaults, DevicesAndTheirMemoryMayBeDroppedInAForksChild) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's threads do not survive a fork";
  std::shared_ptr<Device> device = MakeDevice("software");
  EngineOptions options = Quiet(1);
  options.devices = {device};
  auto eng = std::make_unique<Engine>(std::move(options));
  DeviceMemory memory;
  eng->Push({.place = Gpu(0)}, [&](RunContext& ctx) { memory = ctx.Allocate(1000); });
  eng->WaitAll();
  EXPECT_TRUE(InChild([&] {
    memory.Reset();
    eng.reset();
    device.reset();
    return true;
  }));
}

}  // namespace
}  // namespace engine::test
