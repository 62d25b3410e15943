// Captures and graphs of the cuda backend.
#include "base/tuning.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cudart.h"
#include "engine/device/launch.h"

namespace engine::detail {

using namespace cudart;  // NOLINT: see cudart.h

DeviceStatus CudaDevice::BeginCapture(Stream stream) {
  if (DeviceStatus bad = RefuseNull("BeginCapture", stream, "the stream"); !bad.ok()) return bad;
  // Thread-local: in global mode an allocation or a query by any other thread would spoil the capture, and fail there.
  DeviceStatus status =
      CudaStatus("cudaStreamBeginCapture", cudaStreamBeginCapture(Native(stream), cudaStreamCaptureModeThreadLocal));
  if (status.ok()) NoteCudaCapture(true);
  return status;
}

DeviceStatus CudaDevice::EndCapture(Stream stream, DeviceGraph* graph) {
  *graph = {};
  if (DeviceStatus bad = RefuseNull("EndCapture", stream, "the stream"); !bad.ok()) return bad;
  cudaGraph_t made = nullptr;
  DeviceStatus status = CudaStatus("cudaStreamEndCapture", cudaStreamEndCapture(Native(stream), &made));
  graph->raw = made;
  if (status.code() != DeviceCode::kCaptureWrongThread && status.code() != DeviceCode::kCaptureUnmatched)
    NoteCudaCapture(false);
  return status;
}

DeviceStatus CudaDevice::IsCapturing(Stream stream, bool* capturing) {
  *capturing = false;
  if (DeviceStatus bad = RefuseNull("IsCapturing", stream, "the stream"); !bad.ok()) return bad;
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  DeviceStatus status = CudaStatus("cudaStreamIsCapturing", cudaStreamIsCapturing(Native(stream), &capture));
  *capturing = capture != cudaStreamCaptureStatusNone;
  return status;
}

DeviceStatus CudaDevice::LastNode(Stream stream, DeviceGraphNode* node) {
  *node = {};
  if (DeviceStatus bad = RefuseNull("LastNode", stream, "the stream"); !bad.ok()) return bad;
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  const cudaGraphNode_t* behind = nullptr;
  size_t count = 0;
  // Asked for although nobody needs it: a programmatic edge (one kernel begins before another has ended) makes the call fail if its
  // data would be lost.
  const cudaGraphEdgeData* edges = nullptr;
  const cudaError_t error =
      ENGINE_CUDART_CAPTURE_INFO(Native(stream), &capture, nullptr, nullptr, &behind, &edges, &count);
  if (DeviceStatus bad = CudaStatus("cudaStreamGetCaptureInfo", error); !bad.ok()) return bad;
  if (capture != cudaStreamCaptureStatusActive) {
    return DeviceStatus::Fail(DeviceCode::kCaptureMode, false, 0, "LastNode: the stream does not capture");
  }
  if (count != 1) {
    return DeviceStatus::Fail(DeviceCode::kInvalidValue, false, 0,
                              "LastNode: the stream made no node, or waited since for another stream");
  }
  node->raw = behind[0];
  return {};
}

DeviceStatus CudaDevice::DestroyGraph(DeviceGraph graph) {
  if (DeviceStatus bad = RefuseNull("DestroyGraph", graph, "the graph"); !bad.ok()) return bad;
  const CudaVisit visit(context_);
  return visit.After(CudaStatus("cudaGraphDestroy", cudaGraphDestroy(Native(graph))));
}

DeviceStatus CudaDevice::Instantiate(DeviceGraph graph, DeviceGraphExec* exec, size_t* bytes) {
  *exec = {};
  if (bytes) *bytes = 0;
  if (DeviceStatus bad = RefuseNull("Instantiate", graph, "the graph"); !bad.ok()) return bad;
  const CudaVisit visit(context_, CudaVisit::Device::kThis);
  if (!visit.status().ok()) return visit.status();
  size_t nodes = 0;
  if (DeviceStatus bad = CudaStatus("cudaGraphGetNodes", cudaGraphGetNodes(Native(graph), nullptr, &nodes)); !bad.ok())
    return bad;
  cudaGraphExec_t made = nullptr;
  DeviceStatus status = CudaStatus("cudaGraphInstantiate", cudaGraphInstantiate(&made, Native(graph), 0));
  exec->raw = made;
  // CUDA does not say. The device's free memory before and after is no answer: other processes change it too, and an executable
  // takes its memory only when it is first launched.
  if (bytes && status.ok()) *bytes = nodes * tuning::kGraphNodeBytes;
  return status;
}

DeviceStatus CudaDevice::Update(DeviceGraphExec exec, DeviceGraph graph) {
  if (DeviceStatus bad = RefuseNull("Update", exec, "the executable"); !bad.ok()) return bad;
  if (DeviceStatus bad = RefuseNull("Update", graph, "the graph"); !bad.ok()) return bad;
  cudaGraphExecUpdateResultInfo result{};
  return CudaStatus("cudaGraphExecUpdate", cudaGraphExecUpdate(Native(exec), Native(graph), &result));
}

DeviceStatus CudaDevice::UpdateNode(DeviceGraphExec exec, DeviceGraphNode node, DeviceGraphNode from) {
  if (DeviceStatus bad = RefuseNull("UpdateNode", exec, "the executable"); !bad.ok()) return bad;
  if (DeviceStatus bad = RefuseNull("UpdateNode", node, "the node"); !bad.ok()) return bad;
  if (DeviceStatus bad = RefuseNull("UpdateNode", from, "the source node"); !bad.ok()) return bad;
  cudaGraphNodeType type{}, from_type{};
  if (DeviceStatus bad = CudaStatus("cudaGraphNodeGetType", cudaGraphNodeGetType(Native(node), &type)); !bad.ok()) {
    return bad;
  }
  if (DeviceStatus bad = CudaStatus("cudaGraphNodeGetType", cudaGraphNodeGetType(Native(from), &from_type));
      !bad.ok()) {
    return bad;
  }
  if (type != from_type) {
    return DeviceStatus::Fail(DeviceCode::kInvalidValue, false, 0, "UpdateNode: the nodes are of two kinds");
  }
  // The driver's errors have the runtime's numbers.
  const auto copy = [&](auto of, const char* get_call, const auto& get, const char* set_call, const auto& set) {
    DeviceStatus status = CudaStatus(get_call, static_cast<cudaError_t>(get(Native(from), &of)));
    return status.ok() ? CudaStatus(set_call, static_cast<cudaError_t>(set(Native(exec), Native(node), &of))) : status;
  };
  switch (type) {
    // By the driver: cudaGraphKernelNodeGetParams refuses a kernel of another binary's runtime, or of a library.
    case cudaGraphNodeTypeKernel:
      return copy(CUDA_KERNEL_NODE_PARAMS{}, "cuGraphKernelNodeGetParams", context_.get_kernel,
                  "cuGraphExecKernelNodeSetParams", context_.set_kernel);
    case cudaGraphNodeTypeMemcpy:
      return copy(cudaMemcpy3DParms{}, "cudaGraphMemcpyNodeGetParams", cudaGraphMemcpyNodeGetParams,
                  "cudaGraphExecMemcpyNodeSetParams", cudaGraphExecMemcpyNodeSetParams);
    case cudaGraphNodeTypeMemset:
      return copy(cudaMemsetParams{}, "cudaGraphMemsetNodeGetParams", cudaGraphMemsetNodeGetParams,
                  "cudaGraphExecMemsetNodeSetParams", cudaGraphExecMemsetNodeSetParams);
    default:
      return DeviceStatus::Fail(DeviceCode::kUnsupported, false, 0,
                                "UpdateNode: only kernel, copy and set nodes can be updated one by one");
  }
}

// By the runtime of the kernel's own binary; handles of graphs and streams are the driver's, and the same for all.
DeviceStatus CudaDevice::UpdateNode(DeviceGraphExec exec, DeviceGraphNode node, const KernelLaunch& launch) {
  if (DeviceStatus bad = RefuseNull("UpdateNode", exec, "the executable"); !bad.ok()) return bad;
  if (DeviceStatus bad = RefuseNull("UpdateNode", node, "the node"); !bad.ok()) return bad;
  constexpr const char* kCall = "cudaGraphExecKernelNodeSetParams";
  if (launch.runtime)
    return CudaStatus(kCall, static_cast<cudaError_t>(launch.runtime->set(launch, exec.raw, node.raw)));
  const cudaKernelNodeParams params = CudaKernelParams(launch);
  return CudaStatus(kCall, cudaGraphExecKernelNodeSetParams(Native(exec), Native(node), &params));
}

DeviceStatus CudaDevice::LaunchKernel(const KernelLaunch& launch, Stream stream) {
  if (DeviceStatus bad = RefuseNull("LaunchKernel", stream, "the stream"); !bad.ok()) return bad;
  if (launch.runtime)
    return CudaStatus("cudaLaunchKernel", static_cast<cudaError_t>(launch.runtime->launch(launch, stream.raw)));
  const cudaKernelNodeParams params = CudaKernelParams(launch);
  return CudaStatus("cudaLaunchKernel", cudaLaunchKernel(params.func, params.gridDim, params.blockDim, launch.args,
                                                         launch.shared_bytes, Native(stream)));
}

DeviceStatus CudaDevice::Launch(DeviceGraphExec exec, Stream stream) {
  if (DeviceStatus bad = RefuseNull("Launch", exec, "the executable"); !bad.ok()) return bad;
  if (DeviceStatus bad = RefuseNull("Launch", stream, "the stream"); !bad.ok()) return bad;
  return CudaStatus("cudaGraphLaunch", cudaGraphLaunch(Native(exec), Native(stream)));
}

DeviceStatus CudaDevice::DestroyGraphExec(DeviceGraphExec exec) {
  if (DeviceStatus bad = RefuseNull("DestroyGraphExec", exec, "the executable"); !bad.ok()) return bad;
  const CudaVisit visit(context_);
  return visit.After(CudaStatus("cudaGraphExecDestroy", cudaGraphExecDestroy(Native(exec))));
}

}  // namespace engine::detail
