// DeviceSide: what the core asks its engine's devices. Devices (src/engine/device) is the only implementation; the core
// knows no more of devices than this interface.
//
// Threads: any. Errors: a device's errors go to the ops concerned, see Devices.
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

// DeviceTimer: the events before and after what a body issues; without a device: none.
struct DeviceTimer {
  DeviceState* device = nullptr;
  Event begin = {}, end = {};
};

// Names a graph that a device keeps for what comes again. key 0: none.
struct KeptGraph {
  uint64_t key = 0;
  uint64_t made = 0;  // differs for each graph that was ever kept under the key
};

class DeviceSide {
 public:
  virtual ~DeviceSide() = default;

  // --- placements. A device is in the options, or is made on first use. Make throws UsageError if it cannot be made.
  virtual bool Has(uint32_t device) const = 0;
  virtual void Make(uint32_t device) = 0;
  virtual bool HasChannel(uint32_t index) const = 0;
  virtual uint32_t ChannelDevice(uint32_t index) const = 0;

  // --- running ops
  // Issues a device op. Parameters and result are those of EngineCore::Execute.
  virtual OpRecord* Execute(ThreadSlot& slot, OpRecord* op, Worker* worker) = 0;
  // A device op's Completion was called. Takes over the caller's count of the error.
  virtual void FinishAsync(ThreadSlot& slot, OpRecord* op, ErrorRecord* error) = 0;
  // Whether a host op may run: all device work on its Vars that it must come behind has retired. If not, the op is
  // started again when more has. Passes the error of lost lanes to the Vars.
  virtual bool MayRunOnHost(OpRecord* op) = 0;
  // Ends the dispatch of the chain whose ops the worker issued last, or to which `op` belongs: another op comes next.
  virtual void EndDispatchOf(Worker& worker) = 0;
  virtual void EndDispatchOf(OpRecord* op) = 0;
  // An issuer finds no op, and is about to sleep.
  virtual void NoteIdle(Worker& worker) = 0;

  // --- waiting
  // For a wait, before it sleeps: true if the Var's last write has retired, looking for at most `most`.
  virtual bool PollWrite(VarPoints& points, std::chrono::nanoseconds most) = 0;
  virtual bool Busy() const = 0;                   // something that was issued has not retired
  virtual void PollFaster() = 0;                   // a host thread waits: polls at the pace of waiters from now on
  virtual void AskOwners() = 0;                    // asks the retirement threads for one look at what has ended
  virtual void Ask(std::atomic<bool>& asked) = 0;  // PollFaster for the ops that are or will be parked with this word
  // For a wait, before it sleeps: if the calling thread is one that retires ops, looks once, because nobody else may be looking.
  // Returns whether it is; then it has to look again soon.
  virtual bool LookInPassing() = 0;
  // Whether the calling thread is the retirement thread, or is in the middle of retiring ops.
  virtual bool OnThisThread() const = 0;
  virtual bool Unretired(const VarPoints&) const = 0;  // in a fork's child, which has one thread

  // --- ends
  virtual void ForgetVar(const VarCore* var) = 0;  // the Var's error was cleared, or the Var is gone
  virtual void LoseBusy() = 0;                     // at shutdown: gives up the devices on which something never ends
  virtual void Close() = 0;                        // nothing is pending: ends the thread, gives streams and events back

  // --- what users see
  virtual Stream StreamOf(const OpRecord* op) = 0;
  virtual Device& DeviceOf(const OpRecord* op) = 0;
  virtual Device& device(uint32_t index) = 0;
  virtual DeviceStats stats() const = 0;
};

// `lost_by_fork`: the process is a fork's child, and its parent had devices.
std::unique_ptr<DeviceSide> MakeDevices(EngineCore& core, const EngineOptions& options, bool lost_by_fork = false);
void FreePoints(VarPoints* points) noexcept;

}  // namespace engine::detail
