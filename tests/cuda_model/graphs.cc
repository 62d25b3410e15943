// Graphs made ready, changed, and launched.
#include <cuda.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "model.h"

namespace cuda_model {
namespace {

// Where the work of a copy is: what an update must leave as it is.
int MemoryOf(const void* memory) {
  const std::shared_ptr<Block> block = FindBlock(memory);
  return !block ? -2 : block->pinned ? -1 : block->device;
}
bool SameMemories(const Operation& a, const Operation& b) {
  if (const auto* copy = std::get_if<CopyCall>(&a)) {
    const CopyCall& other = std::get<CopyCall>(b);
    return MemoryOf(copy->to) == MemoryOf(other.to) && MemoryOf(copy->from) == MemoryOf(other.from);
  }
  if (const auto* set = std::get_if<cudaMemsetParams>(&a))
    return MemoryOf(set->dst) == MemoryOf(std::get<cudaMemsetParams>(b).dst);
  return true;
}

// In any order that the edges allow: the last one that may go goes first, so that a missing edge is seen.
void RunNodes(const std::vector<Node>& nodes) {
  std::vector<cudaGraphNode_t> done;
  std::vector<bool> ran(nodes.size());
  while (done.size() < nodes.size()) {
    for (size_t i = nodes.size(); i-- > 0;) {
      const auto is_done = [&](cudaGraphNode_t n) { return std::find(done.begin(), done.end(), n) != done.end(); };
      if (ran[i] || !std::all_of(nodes[i].behind.begin(), nodes[i].behind.end(), is_done)) continue;
      Run(nodes[i].operation);
      ran[i] = true;
      done.push_back(nodes[i].handle);
      break;
    }
  }
}

// A node of the graph that the executable was made of, of the kind that the call is for.
template <class Kind>
cudaError_t FindNode(Call& call, cudaGraphExec_t exec, cudaGraphNode_t node, Node** found) {
  const auto in = call.Find(call.g.execs, exec);
  if (!in || !call.Find(call.g.nodes, node)) return cudaErrorInvalidValue;  // it must still be in its graph
  const auto at =
      std::find_if(in->nodes.begin(), in->nodes.end(), [&](const Node& candidate) { return candidate.handle == node; });
  if (at == in->nodes.end()) return call.Misuse(cudaErrorInvalidValue, "a node of another graph");
  if (!std::holds_alternative<Kind>(at->operation)) return call.Misuse(cudaErrorInvalidValue, "a node of another kind");
  *found = &*at;
  return cudaSuccess;
}

template <class Kind>
cudaError_t Parameters(Call& call, cudaGraphNode_t node, Kind** parameters) {
  const auto found = call.Find(call.g.nodes, node);
  if (!found) return cudaErrorInvalidValue;
  *parameters = std::get_if<Kind>(&found->operation);
  return *parameters ? cudaSuccess : call.Misuse(cudaErrorInvalidValue, "a node of another kind");
}

void** Pointers(KernelCall& kernel) {
  kernel.pointers.clear();
  for (auto& argument : kernel.arguments) kernel.pointers.push_back(argument.data());
  return kernel.pointers.data();
}

// `like` has the launch, and no arguments yet.
cudaError_t SetKernel(Call& call, cudaGraphExec_t exec, cudaGraphNode_t node, KernelCall like, void** arguments,
                      const void* extra) {
  Node* at = nullptr;
  if (const cudaError_t bad = FindNode<KernelCall>(call, exec, node, &at); bad != cudaSuccess) return bad;
  if (extra) return call.Misuse(cudaErrorInvalidValue, "extra is not modelled");
  if (const cudaError_t bad = CheckLaunch(call, like.kernel, like.grid, like.block); bad != cudaSuccess) return bad;
  if (const cudaError_t bad = CopyArguments(*like.kernel, arguments, &like); bad != cudaSuccess) return bad;
  at->operation = std::move(like);
  return cudaSuccess;
}

// The driver has handles of its own for kernels, and knows those of every instance of the runtime.
CUfunction HandleOf(const Kernel& kernel) {
  return reinterpret_cast<CUfunction>(reinterpret_cast<uintptr_t>(HostFunction(kernel)) + 1);
}
const Kernel* KernelOf(CUfunction handle) {
  return FindKernel(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(handle) - 1));
}

int GetKernelOfDriver(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* parameters) {
  return Api("cuGraphKernelNodeGetParams", [&](Call& call) -> cudaError_t {
    KernelCall* kernel = nullptr;
    if (const cudaError_t bad = Parameters(call, node, &kernel); bad != cudaSuccess) return bad;
    *parameters = {};
    parameters->func = HandleOf(*kernel->kernel);
    const auto& [gx, gy, gz] = kernel->grid;
    const auto& [bx, by, bz] = kernel->block;
    parameters->gridDimX = gx, parameters->gridDimY = gy, parameters->gridDimZ = gz;
    parameters->blockDimX = bx, parameters->blockDimY = by, parameters->blockDimZ = bz;
    parameters->sharedMemBytes = static_cast<unsigned>(kernel->shared_bytes);
    parameters->kernelParams = Pointers(*kernel);
    return cudaSuccess;
  });
}

int SetKernelOfDriver(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* parameters) {
  return Api("cuGraphExecKernelNodeSetParams", [&](Call& call) -> cudaError_t {
    const CUDA_KERNEL_NODE_PARAMS& p = *parameters;
    return SetKernel(call, exec, node,
                     {KernelOf(p.func),
                      dim3(p.gridDimX, p.gridDimY, p.gridDimZ),
                      dim3(p.blockDimX, p.blockDimY, p.blockDimZ),
                      p.sharedMemBytes,
                      {},
                      {},
                      Runtime()},
                     p.kernelParams, p.extra);
  });
}

}  // namespace

void* DriverCallOnGraphs(const char* name) {
  if (std::strcmp(name, "cuGraphKernelNodeGetParams") == 0) return reinterpret_cast<void*>(&GetKernelOfDriver);
  if (std::strcmp(name, "cuGraphExecKernelNodeSetParams") == 0) return reinterpret_cast<void*>(&SetKernelOfDriver);
  return nullptr;
}

}  // namespace cuda_model

using namespace cuda_model;

extern "C" {

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return Api(
      __func__,
      [&](Call& call) -> cudaError_t {
        const auto found = call.Find(call.g.graphs, graph);
        if (!found) return cudaErrorInvalidValue;
        if (found->capture) return call.Misuse(cudaErrorInvalidValue, "a capture still writes it");
        for (const auto& node : found->nodes) call.g.nodes.Remove(node->handle);
        call.g.graphs.Remove(graph);
        return cudaSuccess;
      },
      Release::kYes);
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  return Api(__func__, [&](Call& call) -> cudaError_t {
    const auto found = call.Find(call.g.graphs, graph);
    if (!found) return cudaErrorInvalidValue;
    for (size_t i = 0; nodes && i < *count; ++i) nodes[i] = i < found->nodes.size() ? found->nodes[i]->handle : nullptr;
    *count = nodes ? std::min(*count, found->nodes.size()) : found->nodes.size();
    return cudaSuccess;
  });
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  return Api(__func__, [&](Call& call) -> cudaError_t {
    const auto found = call.Find(call.g.nodes, node);
    if (!found) return cudaErrorInvalidValue;
    constexpr cudaGraphNodeType kTypes[] = {cudaGraphNodeTypeEmpty, cudaGraphNodeTypeKernel, cudaGraphNodeTypeMemcpy,
                                            cudaGraphNodeTypeMemset, cudaGraphNodeTypeHost};
    *type = kTypes[found->operation.index()];
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) {
  return Api(__func__, [&](Call& call) -> cudaError_t {
    const auto found = call.Find(call.g.graphs, graph);
    if (!found) return cudaErrorInvalidValue;
    if (found->capture) return call.Misuse(cudaErrorInvalidValue, "a capture still writes the graph");
    if (flags != 0) return call.Misuse(cudaErrorInvalidValue, "flags that are not modelled");
    auto made = std::make_shared<GraphExec>();
    made->device = CurrentDevice();
    for (const auto& node : found->nodes) made->nodes.push_back(*node);
    made->bytes = 4096 * (1 + made->nodes.size());
    call.g.devices[static_cast<size_t>(made->device)].used += call.g.taken_by_others;
    *exec = static_cast<cudaGraphExec_t>(call.g.execs.Add(made));
    return cudaSuccess;
  });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  return Api(
      __func__,
      [&](Call& call) -> cudaError_t {
        const auto found = call.Find(call.g.execs, exec);
        if (!found) return cudaErrorInvalidValue;
        if (found->uploaded) call.g.devices[static_cast<size_t>(found->device)].used -= found->bytes;
        call.g.execs.Remove(exec);
        return cudaSuccess;
      },
      Release::kYes);
}

// "Each launch is ordered behind both any previous work in stream and any previous launches of graphExec."
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  return Api(__func__, [&](Call& call) -> cudaError_t {
    const auto found = call.Find(call.g.execs, exec);
    const auto on = call.Find(call.g.streams, stream);
    if (!found) return cudaErrorInvalidValue;
    if (!on) return cudaErrorInvalidResourceHandle;
    if (on->capture) return call.Misuse(cudaErrorNotSupported, "graphs in graphs are not modelled");
    if (found->device != on->device) return call.Misuse(cudaErrorInvalidValue, "a stream of another device");
    // "cudaGraphUpload [...] the first launch of an executable would do that": it takes its memory then, and not before.
    if (!std::exchange(found->uploaded, true)) call.g.devices[static_cast<size_t>(found->device)].used += found->bytes;
    const std::shared_ptr<Point> before = found->last;
    found->last = std::make_shared<Point>();
    Submit(*on, {[nodes = found->nodes] { RunNodes(nodes); }, before, found->last});
    return cudaSuccess;
  });
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphExecUpdateResultInfo* result) {
  return Api(__func__, [&](Call& call) -> cudaError_t {
    const auto to = call.Find(call.g.execs, exec);
    const auto from = call.Find(call.g.graphs, graph);
    if (!to || !from || !result) return cudaErrorInvalidValue;
    const auto refuse = [&](cudaGraphExecUpdateResult why, cudaGraphNode_t node) {
      *result = {why, node, nullptr};
      return cudaErrorGraphExecUpdateFailure;
    };
    const auto& now = from->nodes;
    if (now.size() != to->nodes.size()) return refuse(cudaGraphExecUpdateErrorTopologyChanged, nullptr);
    const auto places = [](const auto& nodes, const Node& node) {  // its edges, by where the nodes stand
      std::vector<size_t> out;
      for (size_t i = 0; i < nodes.size(); ++i)
        if (std::find(node.behind.begin(), node.behind.end(), nodes[i]) != node.behind.end()) out.push_back(i);
      return out;
    };
    std::vector<cudaGraphNode_t> old_handles, new_handles;
    for (size_t i = 0; i < now.size(); ++i) {
      old_handles.push_back(to->nodes[i].handle);
      new_handles.push_back(now[i]->handle);
    }
    for (size_t i = 0; i < now.size(); ++i) {
      const Node &before = to->nodes[i], &after = *now[i];
      if (places(old_handles, before) != places(new_handles, after))
        return refuse(cudaGraphExecUpdateErrorTopologyChanged, after.handle);
      if (before.operation.index() != after.operation.index())
        return refuse(cudaGraphExecUpdateErrorNodeTypeChanged, after.handle);
      if (before.device != after.device) return refuse(cudaGraphExecUpdateErrorUnsupportedFunctionChange, after.handle);
      if (!SameMemories(before.operation, after.operation))
        return refuse(cudaGraphExecUpdateErrorParametersChanged, after.handle);
    }
    for (size_t i = 0; i < now.size(); ++i) to->nodes[i].operation = now[i]->operation;
    *result = {cudaGraphExecUpdateSuccess, nullptr, nullptr};
    return cudaSuccess;
  });
}

// "owned by the node": pointers to its own arguments.
cudaError_t cudaGraphKernelNodeGetParams(cudaGraphNode_t node, cudaKernelNodeParams* parameters) {
  return Api(__func__, [&](Call& call) -> cudaError_t {
    KernelCall* kernel = nullptr;
    if (const cudaError_t bad = Parameters(call, node, &kernel); bad != cudaSuccess) return bad;
    // "cudaErrorInvalidDeviceFunction [...] if the node's function is not of this instance of the runtime".
    if (kernel->runtime != Runtime()) return cudaErrorInvalidDeviceFunction;
    *parameters = {};
    parameters->func = const_cast<void*>(HostFunction(*kernel->kernel));
    parameters->gridDim = kernel->grid;
    parameters->blockDim = kernel->block;
    parameters->sharedMemBytes = static_cast<unsigned>(kernel->shared_bytes);
    parameters->kernelParams = Pointers(*kernel);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                             const cudaKernelNodeParams* parameters) {
  return Api(__func__, [&](Call& call) -> cudaError_t {
    return SetKernel(call, exec, node,
                     {FindKernel(parameters->func),
                      parameters->gridDim,
                      parameters->blockDim,
                      parameters->sharedMemBytes,
                      {},
                      {},
                      Runtime()},
                     parameters->kernelParams, parameters->extra);
  });
}

cudaError_t cudaGraphMemcpyNodeGetParams(cudaGraphNode_t node, cudaMemcpy3DParms* parameters) {
  return Api(__func__, [&](Call& call) -> cudaError_t {
    CopyCall* copy = nullptr;
    if (const cudaError_t bad = Parameters(call, node, &copy); bad != cudaSuccess) return bad;
    *parameters = {};
    parameters->srcPtr = {const_cast<void*>(copy->from), copy->bytes, copy->bytes, 1};
    parameters->dstPtr = {copy->to, copy->bytes, copy->bytes, 1};
    parameters->extent = {copy->bytes, 1, 1};
    parameters->kind = copy->kind;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphExecMemcpyNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                             const cudaMemcpy3DParms* parameters) {
  return Api(__func__, [&](Call& call) -> cudaError_t {
    Node* at = nullptr;
    if (const cudaError_t bad = FindNode<CopyCall>(call, exec, node, &at); bad != cudaSuccess) return bad;
    const cudaExtent& extent = parameters->extent;
    if (parameters->srcArray || parameters->dstArray || extent.height != 1 || extent.depth != 1 || extent.width == 0)
      return call.Misuse(cudaErrorInvalidValue, "only one dimension, and more than nothing");
    const Operation made = CopyCall{parameters->dstPtr.ptr, parameters->srcPtr.ptr, extent.width, parameters->kind};
    if (!SameMemories(at->operation, made)) return cudaErrorInvalidValue;
    at->operation = made;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphMemsetNodeGetParams(cudaGraphNode_t node, cudaMemsetParams* parameters) {
  return Api(__func__, [&](Call& call) -> cudaError_t {
    cudaMemsetParams* set = nullptr;
    if (const cudaError_t bad = Parameters(call, node, &set); bad != cudaSuccess) return bad;
    *parameters = *set;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphExecMemsetNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                             const cudaMemsetParams* parameters) {
  return Api(__func__, [&](Call& call) -> cudaError_t {
    Node* at = nullptr;
    if (const cudaError_t bad = FindNode<cudaMemsetParams>(call, exec, node, &at); bad != cudaSuccess) return bad;
    const Operation made = *parameters;
    if (parameters->height != 1 || !SameMemories(at->operation, made)) return cudaErrorInvalidValue;
    at->operation = made;
    return cudaSuccess;
  });
}

}  // extern "C"
