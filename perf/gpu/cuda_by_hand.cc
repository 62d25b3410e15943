// By hand on CUDA: raw calls of the runtime. Streams do not wait for stream 0, and events have no other flag than the one that
// every such program sets: no timing.
#include <map>

#include "by_hand.h"
#include "kernels.h"
#include "span_log.h"

namespace engine::perf {
namespace {

class CudaByHand final : public ByHand {
 public:
  CudaByHand(SpanLog& spans, int32_t* flags, uint64_t (*next_flag)(), int n_streams, int n_events)
      : spans_(spans), flags_(flags), next_flag_(next_flag) {
    MustCuda("cudaSetDevice", cudaSetDevice(0));
    for (int i = 0; i < n_streams; ++i)
      MustCuda("cudaStreamCreateWithPriority",
               cudaStreamCreateWithPriority(&streams_.emplace_back(), cudaStreamNonBlocking, 0));
    for (int i = 0; i < n_events; ++i)
      MustCuda("cudaEventCreateWithFlags", cudaEventCreateWithFlags(&events_.emplace_back(), cudaEventDisableTiming));
    cudaMemPoolProps pool{};
    pool.allocType = cudaMemAllocationTypePinned;
    pool.location = {cudaMemLocationTypeDevice, 0};
    MustCuda("cudaMemPoolCreate", cudaMemPoolCreate(&pool_, &pool));
    uint64_t keep_all = UINT64_MAX;
    MustCuda("cudaMemPoolSetAttribute", cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep_all));
  }
  ~CudaByHand() override {
    for (const Made& made : graphs_) {
      (void)cudaGraphExecDestroy(made.exec);
      (void)cudaGraphDestroy(made.graph);
    }
    for (const cudaEvent_t e : events_) (void)cudaEventDestroy(e);
    for (const cudaStream_t s : streams_) (void)cudaStreamDestroy(s);
    (void)cudaMemPoolDestroy(pool_);
  }
  void Spin(size_t stream, Nanos time, const char* name) override {
    MustCuda("cudaLaunchKernel",
             LaunchSpin(streams_[stream], time.count(), spans_.on() ? spans_.Next(streams_[stream], name) : nullptr));
  }
  uint64_t Hold(size_t stream) override {
    const uint64_t hold = next_flag_();
    __atomic_store_n(flags_ + hold, 0, __ATOMIC_RELEASE);
    MustCuda("cudaLaunchKernel", LaunchHold(streams_[stream], flags_ + hold));
    return hold;
  }
  void Synchronize(size_t stream) override {
    MustCuda("cudaStreamSynchronize", cudaStreamSynchronize(streams_[stream]));
  }
  void Record(size_t event, size_t stream) override {
    MustCuda("cudaEventRecord", cudaEventRecord(events_[event], streams_[stream]));
  }
  void Wait(size_t stream, size_t event) override {
    MustCuda("cudaStreamWaitEvent", cudaStreamWaitEvent(streams_[stream], events_[event], cudaEventWaitDefault));
  }
  bool Reached(size_t event) override {
    const cudaError_t error = cudaEventQuery(events_[event]);
    if (error != cudaErrorNotReady) MustCuda("cudaEventQuery", error);
    return error == cudaSuccess;
  }
  void* Allocate(size_t bytes, size_t stream) override {
    void* memory = nullptr;
    MustCuda("cudaMallocFromPoolAsync", cudaMallocFromPoolAsync(&memory, bytes, pool_, streams_[stream]));
    return memory;
  }
  void Free(void* memory, size_t stream) override {
    MustCuda("cudaFreeAsync", cudaFreeAsync(memory, streams_[stream]));
  }
  void* AllocatePinned(size_t bytes) override {
    void* memory = nullptr;
    MustCuda("cudaHostAlloc", cudaHostAlloc(&memory, bytes, cudaHostAllocDefault));
    return memory;
  }
  void FreePinned(void* memory) override { MustCuda("cudaFreeHost", cudaFreeHost(memory)); }
  void CopyIn(void* to, const void* from, size_t bytes, size_t stream) override {
    MustCuda("cudaMemcpyAsync", cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, streams_[stream]));
  }
  size_t Graph(const std::function<void()>& issue) override {
    Made made{.graph = Captured(issue)};
    MustCuda("cudaGraphInstantiate", cudaGraphInstantiate(&made.exec, made.graph, 0));
    size_t count = 0;
    MustCuda("cudaGraphGetNodes", cudaGraphGetNodes(made.graph, nullptr, &count));
    std::vector<cudaGraphNode_t> nodes(count);
    MustCuda("cudaGraphGetNodes", cudaGraphGetNodes(made.graph, nodes.data(), &count));
    for (const cudaGraphNode_t node : nodes) {
      int64_t time = 0;
      MustCuda("cudaGraphKernelNodeGetParams", TimeOfSpinNode(node, &time));
      made.nodes[time] = node;
    }
    graphs_.push_back(std::move(made));
    return graphs_.size() - 1;
  }
  void Update(size_t graph, const std::function<void()>& issue) override {
    const cudaGraph_t captured = Captured(issue);
    cudaGraphExecUpdateResultInfo info{};
    MustCuda("cudaGraphExecUpdate", cudaGraphExecUpdate(graphs_[graph].exec, captured, &info));
    MustCuda("cudaGraphDestroy", cudaGraphDestroy(captured));
  }
  void Launch(size_t graph, size_t stream) override {
    MustCuda("cudaGraphLaunch", cudaGraphLaunch(graphs_[graph].exec, streams_[stream]));
  }
  void SetSpin(size_t graph, Nanos was, Nanos time) override {
    MustCuda("cudaGraphExecKernelNodeSetParams",
             SetSpinNode(graphs_[graph].exec, graphs_[graph].nodes.at(was.count()), time.count()));
  }
  size_t FreeMemory() override {
    size_t free = 0, total = 0;
    MustCuda("cudaMemGetInfo", cudaMemGetInfo(&free, &total));
    return free;
  }
  void* Native(size_t stream) const override { return streams_[stream]; }

 private:
  struct Made {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    std::map<int64_t, cudaGraphNode_t> nodes = {};  // by the times they were issued with
  };
  cudaGraph_t Captured(const std::function<void()>& issue) {
    cudaGraph_t graph = nullptr;
    MustCuda("cudaStreamBeginCapture", cudaStreamBeginCapture(streams_[0], cudaStreamCaptureModeThreadLocal));
    issue();
    MustCuda("cudaStreamEndCapture", cudaStreamEndCapture(streams_[0], &graph));
    return graph;
  }

  SpanLog& spans_;
  int32_t* const flags_;
  uint64_t (*const next_flag_)();
  std::vector<cudaStream_t> streams_;
  std::vector<cudaEvent_t> events_;
  std::vector<Made> graphs_;
  cudaMemPool_t pool_ = nullptr;
};

}  // namespace

std::unique_ptr<ByHand> MakeCudaByHand(SpanLog& spans, int32_t* flags, uint64_t (*next_flag)(), int streams,
                                       int events) {
  return std::make_unique<CudaByHand>(spans, flags, next_flag, streams, events);
}

}  // namespace engine::perf
