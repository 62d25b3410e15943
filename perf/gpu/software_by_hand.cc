// By hand on the software device: its own calls.
#include <map>

#include "by_hand.h"

namespace engine::perf {
namespace {

class SoftwareByHand final : public ByHand {
 public:
  SoftwareByHand(Target& target, int n_streams, int n_events) : target_(target), device_(target.device()) {
    for (int i = 0; i < n_streams; ++i) Must(device_->CreateStream(0, &streams_.emplace_back()));
    for (int i = 0; i < n_events; ++i) Must(device_->CreateEvent(&events_.emplace_back()));
  }
  ~SoftwareByHand() override {
    for (const Made& made : graphs_) {
      (void)device_->DestroyGraphExec(made.exec);
      (void)device_->DestroyGraph(made.graph);
    }
    for (const Event e : events_) (void)device_->DestroyEvent(e);
    for (const Stream s : streams_) (void)device_->DestroyStream(s);
  }
  void Spin(size_t stream, Nanos time, const char* name) override {
    Must(target_.Spin(streams_[stream], time, name));
    if (!capturing_) return;
    DeviceGraphNode node;
    Must(device_->LastNode(streams_[stream], &node));
    capturing_->nodes[time] = node;
  }
  uint64_t Hold(size_t stream) override {
    uint64_t hold = 0;
    Must(target_.Hold(streams_[stream], &hold));
    return hold;
  }
  void Synchronize(size_t stream) override { Must(device_->Synchronize(streams_[stream])); }
  void Record(size_t event, size_t stream) override { Must(device_->Record(events_[event], streams_[stream])); }
  void Wait(size_t stream, size_t event) override { Must(device_->Wait(streams_[stream], events_[event])); }
  bool Reached(size_t event) override {
    const DeviceStatus status = device_->Query(events_[event]);
    if (status.failed()) throw DeviceError(status);
    return status.ok();
  }
  void* Allocate(size_t bytes, size_t stream) override {
    void* memory = nullptr;
    Must(device_->Allocate(bytes, streams_[stream], &memory));
    return memory;
  }
  void Free(void* memory, size_t stream) override { Must(device_->Free(memory, streams_[stream])); }
  void* AllocatePinned(size_t bytes) override {
    void* memory = nullptr;
    Must(device_->AllocatePinned(bytes, &memory));
    return memory;
  }
  void FreePinned(void* memory) override { Must(device_->FreePinned(memory)); }
  void CopyIn(void* to, const void* from, size_t bytes, size_t stream) override {
    Must(device_->CopyIn(to, from, bytes, streams_[stream], MemoryKind::kPinned));
  }
  size_t Graph(const std::function<void()>& issue) override {
    Made made = Captured(issue);
    Must(device_->Instantiate(made.graph, &made.exec, nullptr));
    graphs_.push_back(std::move(made));
    return graphs_.size() - 1;
  }
  void Update(size_t graph, const std::function<void()>& issue) override {
    const Made made = Captured(issue);
    Must(device_->Update(graphs_[graph].exec, made.graph));
    Must(device_->DestroyGraph(made.graph));
  }
  void Launch(size_t graph, size_t stream) override { Must(device_->Launch(graphs_[graph].exec, streams_[stream])); }
  void SetSpin(size_t graph, Nanos was, Nanos time) override {
    const Made with = Captured([&] { Spin(0, time, "spin"); });
    Must(device_->UpdateNode(graphs_[graph].exec, graphs_[graph].nodes.at(was), with.nodes.at(time)));
    Must(device_->DestroyGraph(with.graph));
  }
  size_t FreeMemory() override { return 0; }
  void* Native(size_t) const override { return nullptr; }

 private:
  struct Made {
    DeviceGraph graph = {};
    DeviceGraphExec exec = {};
    std::map<Nanos, DeviceGraphNode> nodes = {};
  };
  Made Captured(const std::function<void()>& issue) {
    Made made;
    capturing_ = &made;
    Must(device_->BeginCapture(streams_[0]));
    issue();
    capturing_ = nullptr;
    Must(device_->EndCapture(streams_[0], &made.graph));
    return made;
  }

  Target& target_;
  const std::shared_ptr<Device> device_;
  std::vector<Stream> streams_;
  std::vector<Event> events_;
  std::vector<Made> graphs_;
  Made* capturing_ = nullptr;
};

}  // namespace

std::unique_ptr<ByHand> MakeSoftwareByHand(Target& target, int streams, int events) {
  return std::make_unique<SoftwareByHand>(target, streams, events);
}

}  // namespace engine::perf
