// Rig: an engine on a target's device, and what the scenarios and cases say over and over.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <thread>

#include "counting_device.h"
#include "engine/engine.h"
#include "engine/spi/held_ops.h"
#include "heap.h"
#include "target.h"

namespace engine::perf {

// How many streams ops without a lane are spread over, and whether calls are counted.
struct RigOptions {
  int streams = 1;
  bool counted = false;
  size_t max_pending = 16384;
  std::chrono::microseconds spin{20};
};

class Rig {
 public:
  explicit Rig(Target& on, RigOptions options = {})
      : target(on),
        counting(options.counted ? std::make_shared<CountingDevice>(on.device()) : nullptr),
        eng(Options(options)) {}

  DeviceCounts counts() const { return counting->counts(); }

  // An op of one kernel.
  void Push(const OpDesc& desc, Nanos time = {}) {
    eng.Push(desc,
             [this, time, name = desc.name.c_str()](RunContext& ctx) { Must(target.Spin(ctx.stream(), time, name)); });
  }
  void Push(HeldOps& bulk, const OpDesc& desc, Nanos time = {}) {
    bulk.Push(desc,
              [this, time, name = desc.name.c_str()](RunContext& ctx) { Must(target.Spin(ctx.stream(), time, name)); });
  }
  // An op whose kernel ends when the returned hold is released; it has been issued by then.
  uint64_t PushHold(const OpDesc& desc) {
    std::atomic<bool> launched{false};
    uint64_t hold = 0;
    eng.Push(desc, [&](RunContext& ctx) {
      Must(target.Hold(ctx.stream(), &hold));
      launched.store(true, std::memory_order_release);  // the hold. Partner: the acquire below
    });
    Until("a held kernel is launched", [&] { return launched.load(std::memory_order_acquire); });
    return hold;
  }
  // Keeps the thread that issues until it is released, so that it does not run out of ops before all are pushed.
  class Busy {
   public:
    explicit Busy(Rig& rig) {
      rig.eng.Push({.name = "busy", .place = Gpu(0, 0)}, [over = over_](RunContext&) { over->wait(false); });
    }
    ~Busy() { Release(); }
    Busy(const Busy&) = delete;
    void Release() {
      over_->store(true);
      over_->notify_all();
    }

   private:
    const std::shared_ptr<std::atomic<bool>> over_ = std::make_shared<std::atomic<bool>>(false);
  };
  // Everything pushed so far is on the device. For engines whose every op is a device op.
  void UntilIssued() {
    Until("everything is issued", [&] { return eng.device_stats().issued == eng.stats().pushed; });
  }

  template <class Condition>
  static void Until(const char* what, Condition condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) throw std::runtime_error(std::string("20 s, and not yet: ") + what);
      std::this_thread::yield();
    }
  }

  Target& target;
  std::shared_ptr<CountingDevice> counting;
  Engine eng;

 private:
  EngineOptions Options(const RigOptions& options) const {
    EngineOptions out;
    out.workers = 1;
    out.devices = {counting ? std::static_pointer_cast<Device>(counting) : target.device()};
    out.streams_per_device = options.streams;
    out.max_pending = options.max_pending;
    out.spin = options.spin;
    return out;
  }
};

}  // namespace engine::perf
