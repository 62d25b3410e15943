// ctx.Launch: onto the op's stream, into a capture, or into the op's node of a graph.
#include "core/core.h"
#include "device/bulk_graphs.h"
#include "device/devices.h"

namespace engine {

void RunContext::LaunchErased(const KernelLaunch& launch) {
  const detail::BodyFrame* frame = detail::t_frame;
  while (frame && frame->op != op_) frame = frame->outer;
  if (frame && frame->update) {
    detail::NodeUpdate& update = *frame->update;
    DeviceStatus status = device().UpdateNode(update.exec, update.node, launch);
    if (update.launches++ == 0) update.status = status;
    if (!status.ok()) throw DeviceError(std::move(status));
    return;
  }
  const Stream on = stream();
  if (DeviceStatus status = device().LaunchKernel(launch, on); !status.ok()) throw DeviceError(std::move(status));
  if (frame && frame->stream) detail::DevicesOf(*core_).lane(op_->extra.lane).device->graphs->NoteLaunch();
}

}  // namespace engine
