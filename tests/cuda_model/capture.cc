// Captures of streams into graphs. Rules: Programming Guide, "Creating a Graph Using Stream Capture"; the runtime's page on
// stream management.
#include <algorithm>

#include "control.h"
#include "model.h"

namespace cuda_model {
namespace {

// Takes all its streams out of capture mode, and forgets the graph unless it is wanted.
void End(State& g, Capture& capture, bool keep_graph) {
  capture.ended = true;
  g.captures.erase(&capture);
  const std::shared_ptr<Graph> graph = g.graphs.Find(capture.graph);
  graph->capture = nullptr;
  if (!keep_graph) {
    for (const auto& node : graph->nodes) g.nodes.Remove(node->handle);
    g.graphs.Remove(capture.graph);
  }
  for (auto& [handle, stream] : g.streams.live()) {
    if (stream->capture.get() != &capture) continue;
    stream->behind.clear();
    stream->programmatic = false;
    stream->capture = nullptr;
  }
}

// Whether all that was captured leads to the end of the origin stream.
bool Joined(State& g, const Graph& graph, const Stream& origin) {
  std::vector<cudaGraphNode_t> reached = origin.behind;
  for (size_t i = 0; i < reached.size(); ++i)
    for (const cudaGraphNode_t before : g.nodes.Find(reached[i])->behind)
      if (std::find(reached.begin(), reached.end(), before) == reached.end()) reached.push_back(before);
  return reached.size() == graph.nodes.size();
}

}  // namespace

// "When an invalid operation is attempted during stream capture, any associated capture graphs are invalidated."
void Invalidate(Capture& capture) { capture.invalid = true; }

// By the thread's own mode (cudaThreadExchangeStreamCaptureMode): what it captures in another mode than the relaxed one, and, if it
// is the global one, what others capture in that.
cudaError_t Call::Unsafe() {
  bool prohibited = false;
  if (CaptureMode() == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  for (Capture* capture : g.captures) {
    const bool own = capture->thread == std::this_thread::get_id();
    if (own ? capture->mode == cudaStreamCaptureModeRelaxed
            : capture->mode != cudaStreamCaptureModeGlobal || CaptureMode() != cudaStreamCaptureModeGlobal)
      continue;
    Invalidate(*capture);
    prohibited = true;
  }
  return prohibited ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

cudaError_t AddNode(Call& call, Stream& stream, Operation operation) {
  if (stream.capture->invalid) return cudaErrorStreamCaptureInvalidated;
  auto node = std::make_shared<Node>();
  node->device = stream.device;
  node->operation = std::move(operation);
  node->behind = stream.behind;
  node->handle = static_cast<cudaGraphNode_t>(call.g.nodes.Add(node));
  call.g.graphs.Find(stream.capture->graph)->nodes.push_back(node);
  stream.behind = {node->handle};
  stream.programmatic = false;
  return cudaSuccess;
}

}  // namespace cuda_model

using namespace cuda_model;

extern "C" {

void cudaModelProgrammaticEdge(cudaStream_t stream) {
  const std::lock_guard lock(state().mu);
  const auto on = state().streams.Find(stream);
  on->programmatic = on->capture != nullptr;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return Api(__func__, [&](Call& call) -> cudaError_t {
    const auto on = call.Find(call.g.streams, stream);
    if (!on) return cudaErrorInvalidResourceHandle;
    if (on->capture) {
      Invalidate(*on->capture);
      return cudaErrorIllegalState;
    }
    static unsigned long long captures = 0;
    auto made = std::make_shared<Capture>();
    auto graph = std::make_shared<Graph>();
    made->id = ++captures;
    made->mode = mode;
    made->origin = stream;
    made->thread = std::this_thread::get_id();
    made->graph = static_cast<cudaGraph_t>(call.g.graphs.Add(graph));
    graph->capture = made.get();
    call.g.captures.insert(made.get());
    on->capture = made;
    on->behind.clear();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return Api(
      __func__,
      [&](Call& call) -> cudaError_t {
        *graph = nullptr;
        const auto on = call.Find(call.g.streams, stream);
        if (!on) return cudaErrorInvalidResourceHandle;
        const std::shared_ptr<Capture> capture = on->capture;
        if (!capture) return cudaErrorIllegalState;
        if (capture->origin != stream) {
          Invalidate(*capture);
          return cudaErrorStreamCaptureUnmatched;
        }
        if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != std::this_thread::get_id())
          return cudaErrorStreamCaptureWrongThread;
        const bool planted = call.failed();
        const bool joined = Joined(call.g, *call.g.graphs.Find(capture->graph), *on);
        const bool good = !capture->invalid && joined && !planted;
        End(call.g, *capture, good);
        if (good) *graph = capture->graph;
        return capture->invalid ? cudaErrorStreamCaptureInvalidated
               : joined         ? cudaSuccess
                                : cudaErrorStreamCaptureUnjoined;
      },
      Release::kYes);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return Api(__func__, [&](Call& call) -> cudaError_t {
    const auto on = call.Find(call.g.streams, stream);
    if (!on) return cudaErrorInvalidResourceHandle;
    *status = !on->capture           ? cudaStreamCaptureStatusNone
              : on->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                     : cudaStreamCaptureStatusActive;
    return cudaSuccess;
  });
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return Api(
      __func__,
      [&](Call& call) -> cudaError_t {
        if (!mode || *mode > cudaStreamCaptureModeRelaxed) return call.Misuse(cudaErrorInvalidValue, "the mode");
        std::swap(*mode, CaptureMode());
        return cudaSuccess;
      },
      Release::kNo, Context::kNotNeeded);
}

// "The array pointer is valid until the next API call which operates on the stream": it is the stream's own.
#if CUDART_VERSION >= 13000
cudaError_t cudaStreamGetCaptureInfo(
#else
cudaError_t cudaStreamGetCaptureInfo_v3(
#endif
    cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph,
    const cudaGraphNode_t** behind, const cudaGraphEdgeData** edges, size_t* count) {
  return Api(__func__, [&](Call& call) -> cudaError_t {
    const auto on = call.Find(call.g.streams, stream);
    if (!on) return cudaErrorInvalidResourceHandle;
    if (!status || (edges && !behind)) return call.Misuse(cudaErrorInvalidValue, "results that are missing");
    if (edges) *edges = nullptr;
    *status = !on->capture           ? cudaStreamCaptureStatusNone
              : on->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                     : cudaStreamCaptureStatusActive;
    if (*status != cudaStreamCaptureStatusActive) return cudaSuccess;
    // "there is non-zero edge data for one or more of the current stream dependencies".
    if (on->programmatic && behind && !edges) return cudaErrorLossyQuery;
    if (on->programmatic && edges) {
      thread_local std::vector<cudaGraphEdgeData> programmatic;
      programmatic.assign(on->behind.size(), cudaGraphEdgeData{});
      for (cudaGraphEdgeData& edge : programmatic) edge.type = cudaGraphDependencyTypeProgrammatic;
      *edges = programmatic.data();
    }
    if (id) *id = on->capture->id;
    if (graph) *graph = on->capture->graph;
    if (behind) *behind = on->behind.data();
    if (count) *count = on->behind.size();
    return cudaSuccess;
  });
}

}  // extern "C"
