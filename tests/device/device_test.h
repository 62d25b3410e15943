// What the tests of an engine on devices start from: an engine with software devices, and kernels on them.
#pragma once

#include <memory>
#include <string>

#include "engine/spi/held_ops.h"
#include "engine/testing/software_device.h"
#include "support/engine_test.h"

namespace engine::test {

struct Failure {
  std::string op, text;
};
// What waiting for the Var throws; all empty: nothing.
inline Failure FailureOf(Engine& eng, const Var& var) {
  try {
    eng.Wait(var);
  } catch (const OpError& error) {
    return {std::string(error.op()), error.what()};
  }
  return {};
}

inline void ExpectHas(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
}

struct Rig {
  explicit Rig(SoftwareDeviceOptions device_options = {}, int workers = 1, int streams = 4, int n_devices = 1) {
    for (int i = 0; i < n_devices; ++i) {
      device_options.ordinal = i;
      devices.push_back(MakeSoftwareDevice(device_options));
    }
    EngineOptions options = Quiet(workers);
    options.streams_per_device = streams;
    options.devices.assign(devices.begin(), devices.end());
    options.drain_timeout = std::chrono::milliseconds(500);
    engine = std::make_unique<Engine>(options);
  }
  ~Rig() {
    for (uint64_t hold : holds) device().Release(hold);
    engine.reset();
  }
  SoftwareDevice& device(size_t i = 0) { return *devices[i]; }
  Engine& eng() { return *engine; }

  // An op of one kernel.
  void Push(
      OpDesc desc, std::function<void()> body = [] {}) {
    if (desc.place.kind == Placement::Kind::kDefault) desc.place = Gpu(0);
    eng().Push(desc, [this, name = std::string(desc.name.c_str()), body = std::move(body)](RunContext& ctx) {
      Launch(ctx, name, body);
    });
  }
  void Launch(
      RunContext& ctx, const std::string& name, std::function<void()> body = [] {}) {
    const DeviceStatus status = static_cast<SoftwareDevice&>(ctx.device())
                                    .Launch(ctx.stream(), name, std::chrono::microseconds(1), std::move(body));
    if (!status.ok()) throw DeviceError(status);
  }
  // An op of one kernel that ends when the hold is released, at the latest when the rig goes.
  uint64_t PushHeldKernel(OpDesc desc) {
    if (desc.place.kind == Placement::Kind::kDefault) desc.place = Gpu(0);
    Gate issued;
    uint64_t hold = 0;
    eng().Push(desc, [&](RunContext& ctx) {
      const DeviceStatus status = static_cast<SoftwareDevice&>(ctx.device()).LaunchHeld(ctx.stream(), "held", &hold);
      if (!status.ok()) throw DeviceError(status);
      issued.Open();
    });
    issued.Wait();
    holds.push_back(hold);
    return hold;
  }
  // Has everything pushed so far issued, without waiting for the device.
  void WaitIssued() {
    while (eng().device_stats().issued + issued_elsewhere < eng().stats().pushed) std::this_thread::yield();
  }
  // Until there is an event behind the `n`th op. A worker that runs out of ops records one, so there are `n` of them if the
  // ops were pushed one by one, each when there was one behind the last.
  void WaitRecorded(uint64_t n) {
    while (eng().device_stats().records < n) std::this_thread::yield();
  }

  std::vector<std::shared_ptr<SoftwareDevice>> devices;
  std::unique_ptr<Engine> engine;
  std::vector<uint64_t> holds;
  uint64_t issued_elsewhere = 0;  // ops pushed that are not for a device
};

}  // namespace engine::test
