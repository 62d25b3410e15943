// Ranks of one communicator, each on a device of one engine, and their buffers of floats.
#pragma once

#include <deque>
#include <optional>

#include "device_test.h"
#include "engine/testing/loopback.h"

namespace engine::test {

// What ranks run on: software devices, where they meet by loopback, or CUDA (nccl_test.cc). Bodies of kernels are host code.
struct RanksOn {
  const char* name;
  std::vector<std::shared_ptr<Device>> (*devices)(int n);
  void (*launch)(RunContext& ctx, std::function<void()> body);
};
inline const RanksOn kSoftware{"Software",
                               [](int n) {
                                 std::vector<std::shared_ptr<Device>> devices;
                                 for (int i = 0; i < n; ++i) devices.push_back(MakeSoftwareDevice({.ordinal = i}));
                                 return devices;
                               },
                               [](RunContext& ctx, std::function<void()> body) {
                                 const DeviceStatus status =
                                     static_cast<SoftwareDevice&>(ctx.device())
                                         .Launch(ctx.stream(), "kernel", std::chrono::microseconds(1), std::move(body));
                                 if (!status.ok()) throw DeviceError(status);
                               }};

struct Ranks {
  explicit Ranks(int n, CommunicatorOptions options = {}, const RanksOn& place = kSoftware)
      : launch(place.launch), devices(place.devices(n)) {
    EngineOptions engine_options = Quiet(2);
    engine_options.streams_per_device = 2;
    engine_options.devices = devices;
    engine_options.drain_timeout = std::chrono::milliseconds(500);
    engine.emplace(engine_options);
    if (options.id == CommunicatorId{}) options.id = NewCommunicatorId(device());
    id = options.id;
    options.size = n;
    for (int r = 0; r < n; ++r) {
      options.device = options.rank = r;
      comms.emplace_back(Communicator(eng(), options));
    }
  }
  ~Ranks() {
    comms.clear();
    engine.reset();
    for (const auto& [rank, memory] : owned) {
      Device& on = device(static_cast<size_t>(rank));
      Stream stream;
      if (!on.CreateStream(0, &stream).ok()) continue;
      (void)on.Free(memory, stream);
      (void)on.DestroyStream(stream);
    }
  }
  int size() const { return static_cast<int>(comms.size()); }
  Engine& eng() { return *engine; }
  Device& device(size_t rank = 0) { return *devices[rank]; }
  // Other devices than software ones do not count.
  void ExpectCalls(size_t rank, DeviceCall call, uint64_t n) {
    const auto* const software = dynamic_cast<SoftwareDevice*>(devices[rank].get());
    EXPECT_EQ(software ? software->counts()[call] : n, n) << DeviceCallName(call);
  }

  // `n` floats in the memory of a rank's device, and the Var that stands for them.
  struct Buffer {
    int rank;
    float* data;
    size_t n;
    Var var;
  };
  Buffer New(int rank, size_t n) {
    Device& on = device(static_cast<size_t>(rank));
    Stream stream;
    void* memory = nullptr;
    Check(on.CreateStream(0, &stream));
    Check(on.Allocate(n * sizeof(float), stream, &memory));
    Check(on.Synchronize(stream));
    Check(on.DestroyStream(stream));
    owned.push_back({rank, memory});
    return {rank, static_cast<float*>(memory), n, eng().NewVar()};
  }
  static void Check(const DeviceStatus& status) {
    if (!status.ok()) throw DeviceError(status);
  }
  // A kernel on a rank's device.
  void Kernel(Submitter& to, int rank, OpDesc desc, std::function<void()> body) {
    desc.place = Gpu(static_cast<uint16_t>(rank));
    to.Push(desc, [this, body = std::move(body)](RunContext& ctx) { launch(ctx, body); });
  }
  void Fill(Submitter& to, const Buffer& b, std::vector<float> values) {
    Kernel(to, b.rank, {.name = "fill", .writes = b.var}, [=] { std::copy(values.begin(), values.end(), b.data); });
  }
  std::vector<float> Read(const Buffer& b) {
    std::vector<float> out(b.n);
    const Var done = eng().NewVar();
    Kernel(eng(), b.rank, {.name = "read", .reads = b.var, .writes = done},
           [&] { std::copy_n(b.data, b.n, out.begin()); });
    eng().Wait(done);
    return out;
  }
  void AllReduce(int rank, const Buffer& b) {
    comms[static_cast<size_t>(rank)].Push(eng(), {.name = "all_reduce", .updates = b.var},
                                          {Collective::AllReduce(b.data, b.data, b.n)});
  }
  std::string ErrorOf(const Var& var) { return FailureOf(eng(), var).text; }
  // Whoever did not look at the errors that a test has asked for.
  void SeeErrors() {
    for (bool more = true; more;) {
      try {
        eng().WaitAll();
        more = false;
      } catch (const OpError&) {
      }
    }
  }

  void (*const launch)(RunContext& ctx, std::function<void()> body);
  const std::vector<std::shared_ptr<Device>> devices;
  std::optional<Engine> engine;
  CommunicatorId id;
  std::deque<Communicator> comms;
  std::vector<std::pair<int, void*>> owned;  // memory, by rank
};

// Those tests that every kind of ranks passes.
class Communicators : public testing::TestWithParam<const RanksOn*> {
 protected:
  const RanksOn& place() const { return *GetParam(); }
};

// Rank 0 of two, whose peer never comes, on the device of an engine of its own; and what is on its way: the op 'alone'.
struct Alone {
  explicit Alone(const std::function<void(EngineOptions&)>& change = {}, std::string name = "world",
                 SoftwareDeviceOptions device_options = {})
      : device(MakeSoftwareDevice(device_options)), options(Quiet(1)) {
    options.devices = {device};
    options.drain_timeout = std::chrono::milliseconds(500);
    if (change) change(options);
    eng = std::make_unique<Engine>(options);
    g = eng->NewVar("g");
    void* memory = nullptr;
    Stream stream;
    Ranks::Check(device->CreateStream(0, &stream));
    Ranks::Check(device->Allocate(4, stream, &memory));
    comm.emplace(*eng, CommunicatorOptions{.name = std::move(name), .size = 2, .id = NewCommunicatorId(*device)});
    comm->Push(*eng, {.name = "alone", .updates = g}, {Collective::AllReduce(memory, memory, 1)});
  }
  // The join and the collective.
  void WaitIssued() const {
    while (eng->device_stats().issued < 2) std::this_thread::yield();
  }
  // While the collective is still there.
  void End() {
    EXPECT_FALSE(eng->WaitFor(g, 0s)) << "the collective has gone";
    comm->Abort("over");
    ExpectHas(FailureOf(*eng, g).text, "over");
  }

  std::shared_ptr<SoftwareDevice> device;
  EngineOptions options;
  std::unique_ptr<Engine> eng;
  Var g;
  std::optional<Communicator> comm;
};

}  // namespace engine::test
