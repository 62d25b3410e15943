// DeviceSide: what the core asks of its engine's devices. Devices (src/engine/device) is the one implementation; the core
// knows no more of devices than this.
//
// Threads: any. Errors: of the ops concerned, see Devices.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>

#include "engine/device/device.h"
#include "engine/engine.h"
#include "order/op_record.h"

namespace engine::detail {

class EngineCore;
struct DeviceState;
struct Worker;

// Around what a body issues: two timed events, or none.
struct DeviceTimer {
  DeviceState* device = nullptr;
  Event begin = {}, end = {};
};

class DeviceSide {
 public:
  virtual ~DeviceSide() = default;

  // --- placements. What the options gave, or is made on first use; Make throws UsageError where neither is possible.
  virtual bool Has(uint32_t device) const = 0;
  virtual void Make(uint32_t device) = 0;
  virtual bool HasChannel(uint32_t index) const = 0;
  virtual uint32_t ChannelDevice(uint32_t index) const = 0;

  // --- running ops
  // Issues a device op; as EngineCore::Execute.
  virtual OpRecord* Execute(ThreadSlot& slot, OpRecord* op, Worker* worker) = 0;
  // A device op's Completion was called. Consumes the error's count.
  virtual void FinishAsync(ThreadSlot& slot, OpRecord* op, ErrorRecord* error) = 0;
  // Whether a host op may run: all device work on its Vars that it must come behind has retired. If not, the op is
  // started again when more has. Passes the error of lost lanes to the Vars.
  virtual bool MayRunOnHost(OpRecord* op) = 0;
  // The issuer turns to something else than the next op of the chain whose ops it issued last, or that `op` is of.
  virtual void EndDispatchOf(Worker& worker) = 0;
  virtual void EndDispatchOf(OpRecord* op) = 0;

  // --- waiting
  // For a wait, before it sleeps: true if the Var's last write has retired, looking for at most `most`.
  virtual bool PollWrite(VarPoints& points, std::chrono::nanoseconds most) = 0;
  virtual bool Busy() const = 0;                       // something issued has not retired
  virtual void PollFaster() = 0;                       // a host waiter came: polls at the pace of waiters from now on
  virtual void Ask(std::atomic<bool>& asked) = 0;      // the same for what is parked, or will be, with this word
  virtual bool Unretired(const VarPoints&) const = 0;  // in a fork's child, alone

  // --- ends
  virtual void ForgetVar(const VarCore* var) = 0;  // its error was cleared, or it is gone
  virtual void LoseBusy() = 0;                     // at shutdown: those on which something never ends
  virtual void Close() = 0;                        // nothing is pending: ends the thread, gives streams and events back

  // --- what users see
  virtual Stream StreamOf(const OpRecord* op) = 0;
  virtual Device& DeviceOf(const OpRecord* op) = 0;
  virtual Device& device(uint32_t index) = 0;
  virtual DeviceStats stats() const = 0;
};

// `lost_by_fork`: in a child whose parent had devices.
std::unique_ptr<DeviceSide> MakeDevices(EngineCore& core, const EngineOptions& options, bool lost_by_fork = false);
void FreePoints(VarPoints* points) noexcept;

}  // namespace engine::detail
