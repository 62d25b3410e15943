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

// The child goes on in the body of an op on a device, and returns from it. (Threads of the parent may have the device's locks.)
TEST(DeviceFaults, TheChildThatReturnsFromABodyOnADeviceEndsWithItsThread) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's threads do not survive a fork";
  const SharedCount ran;
  for (const bool throws : {false, true})
    for (const bool async : {false, true}) {
      *ran = 0;
      pid_t child = 0;
      Rig rig;
      const Var a = rig.eng().NewVar("a");
      const auto body = [&] {
        ++*ran;
        child = fork();
        if (child != 0) return;
        alarm(30);
        if (throws) throw std::runtime_error("in the child");
      };
      if (async) {
        rig.eng().PushAsync({.name = "forks", .writes = {a}, .place = Gpu(0)}, [&](RunContext&, Completion done) {
          body();
          done();
        });
      } else {
        rig.eng().Push({.name = "forks", .writes = {a}, .place = Gpu(0)}, [&](RunContext&) { body(); });
      }
      for (int i = 0; i < 5; ++i)
        rig.eng().Push({.name = "behind", .updates = {a}, .place = Gpu(0)}, [&](RunContext&) { ++*ran; });
      rig.eng().WaitAll();
      EXPECT_TRUE(HowItEnded(child));
      EXPECT_EQ(*ran, 6);
    }
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
