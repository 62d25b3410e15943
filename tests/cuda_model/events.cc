// Events: points of streams that can be overwritten, queried and waited for; in a capture, sets of nodes.
#include <algorithm>
#include <utility>

#include "control.h"
#include "model.h"

namespace cuda_model {
namespace {

// An event that was last recorded in a capture stands for nothing that runs.
cudaError_t RefuseCaptured(const Event& event) {
  if (!event.capture) return cudaSuccess;
  if (!event.capture->ended) Invalidate(*event.capture);
  return cudaErrorCapturedEvent;
}

}  // namespace
}  // namespace cuda_model

using namespace cuda_model;

extern "C" {

unsigned cudaModelEventFlags() {
  const std::lock_guard lock(state().mu);
  return std::exchange(state().event_flags, 0u);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return Api(__func__, [&](Call& call) -> cudaError_t {
    if (!event || (flags & ~unsigned{cudaEventBlockingSync | cudaEventDisableTiming}) != 0)
      return call.Misuse(cudaErrorInvalidValue, "the result is null, or the flags are none that are modelled");
    auto made = std::make_shared<Event>();
    made->device = CurrentDevice();
    made->flags = flags;
    call.g.event_flags |= flags;
    *event = static_cast<cudaEvent_t>(call.g.events.Add(made));
    return cudaSuccess;
  });
}

// "may be destroyed before it is complete [...] the call does not block".
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return Api(
      __func__,
      [&](Call& call) -> cudaError_t {
        if (!call.Find(call.g.events, event)) return cudaErrorInvalidResourceHandle;
        call.g.events.Remove(event);
        return cudaSuccess;
      },
      Release::kYes);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return Api(__func__, [&](Call& call) -> cudaError_t {
    const auto found = call.Find(call.g.events, event);
    const auto on = call.Find(call.g.streams, stream);
    if (!found || !on) return cudaErrorInvalidResourceHandle;
    if (found->device != on->device)
      return call.Misuse(cudaErrorInvalidResourceHandle, "event and stream of two devices");
    if (on->capture) {
      if (on->capture->invalid) return cudaErrorStreamCaptureInvalidated;
      found->capture = on->capture;
      found->nodes = on->behind;
      found->point = nullptr;
      return cudaSuccess;
    }
    found->capture = nullptr;
    found->nodes.clear();
    found->point = std::make_shared<Point>();
    Submit(*on, {{}, {}, found->point});
    return cudaSuccess;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  return Api(__func__, [&](Call& call) -> cudaError_t {
    const auto on = call.Find(call.g.streams, stream);
    const auto found = call.Find(call.g.events, event);
    if (!on || !found) return cudaErrorInvalidResourceHandle;
    if (flags != cudaEventWaitDefault) return call.Misuse(cudaErrorInvalidValue, "flags that are not modelled");
    Capture* const ours = on->capture.get();
    Capture* const theirs = found->capture.get();
    if (ours && ours->invalid) return cudaErrorStreamCaptureInvalidated;
    if (!theirs) {
      if (!ours) {
        if (found->point && !found->point->reached) Submit(*on, {{}, found->point, {}});
        return cudaSuccess;
      }
      // "invalid to wait on a non-captured event from a stream which is being captured" (Programming Guide, stream capture).
      Invalidate(*ours);
      return cudaErrorStreamCaptureIsolation;
    }
    if (theirs->ended) {
      if (!ours) return cudaErrorCapturedEvent;
      Invalidate(*ours);
      return cudaErrorStreamCaptureIsolation;
    }
    if (theirs->invalid) return cudaErrorStreamCaptureInvalidated;
    if (ours && ours != theirs) {
      Invalidate(*ours);
      Invalidate(*theirs);
      return cudaErrorStreamCaptureMerge;
    }
    on->capture = found->capture;  // "places the stream in capture mode if it is not already"
    for (const cudaGraphNode_t node : found->nodes)
      if (std::find(on->behind.begin(), on->behind.end(), node) == on->behind.end()) on->behind.push_back(node);
    return cudaSuccess;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return Api(__func__, [&](Call& call) -> cudaError_t {
    const auto found = call.Find(call.g.events, event);
    if (!found) return cudaErrorInvalidResourceHandle;
    if (const cudaError_t captured = RefuseCaptured(*found); captured != cudaSuccess) return captured;
    if (const cudaError_t unsafe = call.Unsafe(); unsafe != cudaSuccess) return unsafe;
    return !found->point || found->point->reached ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return Api(__func__, [&](Call& call) -> cudaError_t {
    const auto found = call.Find(call.g.events, event);
    if (!found) return cudaErrorInvalidResourceHandle;
    if (const cudaError_t captured = RefuseCaptured(*found); captured != cudaSuccess) return captured;
    if (const cudaError_t unsafe = call.Unsafe(); unsafe != cudaSuccess) return unsafe;
    const std::shared_ptr<Point> point = found->point;  // "currently captured": a later record does not count
    const cudaError_t lost = call.Wait([&] { return !point || point->reached; });
    if (lost == cudaSuccess) ReleaseUnused(found->device);
    return lost;
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return Api(__func__, [&](Call& call) -> cudaError_t {
    const auto from = call.Find(call.g.events, start);
    const auto to = call.Find(call.g.events, end);
    if (!from || !to) return cudaErrorInvalidResourceHandle;
    if (from->device != to->device) return call.Misuse(cudaErrorInvalidResourceHandle, "events of two devices");
    for (const auto& event : {from, to}) {
      if (const cudaError_t captured = RefuseCaptured(*event); captured != cudaSuccess) return captured;
      if (!event->point || (event->flags & cudaEventDisableTiming)) return cudaErrorInvalidResourceHandle;
    }
    if (!from->point->reached || !to->point->reached) return cudaErrorNotReady;
    *milliseconds = std::chrono::duration<float, std::milli>(to->point->when - from->point->when).count();
    return cudaSuccess;
  });
}

}  // extern "C"
