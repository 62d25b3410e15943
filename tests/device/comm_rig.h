// Ranks of one communicator, each on a software device of one engine, and their buffers of floats.
#pragma once

#include <deque>
#include <optional>

#include "device_test.h"
#include "engine/loopback.h"

namespace engine::test {

struct Ranks {
  explicit Ranks(int n, CommunicatorOptions options = {}) : rig({}, 2, 2, n) {
    if (options.id == CommunicatorId{}) options.id = NewCommunicatorId(rig.device());
    id = options.id;
    options.size = n;
    for (int r = 0; r < n; ++r) {
      options.device = options.rank = r;
      comms.emplace_back(Communicator(rig.eng(), options));
    }
  }
  ~Ranks() {
    comms.clear();
    rig.engine.reset();
  }
  int size() const { return static_cast<int>(comms.size()); }

  // `n` floats in the memory of a rank's device, and the Var that stands for them.
  struct Buffer {
    int rank;
    float* data;
    size_t n;
    Var var;
  };
  Buffer New(int rank, size_t n) {
    Device& device = rig.device(static_cast<size_t>(rank));
    Stream stream;
    void* memory = nullptr;
    Check(device.CreateStream(0, &stream));
    Check(device.Allocate(n * sizeof(float), stream, &memory));
    Check(device.Synchronize(stream));
    Check(device.DestroyStream(stream));
    return {rank, static_cast<float*>(memory), n, rig.eng().NewVar()};
  }
  static void Check(const DeviceStatus& status) {
    if (!status.ok()) throw DeviceError(status);
  }
  // A kernel on a rank's device.
  void Kernel(Submitter& to, int rank, OpDesc desc, std::function<void()> body) {
    desc.place = Gpu(static_cast<uint16_t>(rank));
    to.Push(desc, [this, body = std::move(body)](RunContext& ctx) { rig.Launch(ctx, "kernel", body); });
  }
  void Fill(Submitter& to, const Buffer& b, std::vector<float> values) {
    Kernel(to, b.rank, {.name = "fill", .writes = b.var}, [=] { std::copy(values.begin(), values.end(), b.data); });
  }
  std::vector<float> Read(const Buffer& b) {
    std::vector<float> out(b.n);
    const Var done = rig.eng().NewVar();
    Kernel(rig.eng(), b.rank, {.name = "read", .reads = b.var, .writes = done},
           [&] { std::copy_n(b.data, b.n, out.begin()); });
    rig.eng().Wait(done);
    return out;
  }
  void AllReduce(int rank, const Buffer& b) {
    comms[static_cast<size_t>(rank)].Push(rig.eng(), {.name = "all_reduce", .updates = b.var},
                                          {Collective::AllReduce(b.data, b.data, b.n)});
  }
  // The text of the error that waiting for `var` throws; empty: none.
  std::string ErrorOf(const Var& var) {
    try {
      rig.eng().Wait(var);
    } catch (const OpError& error) {
      return error.what();
    }
    return "";
  }
  // Whoever did not look at the errors that a test has asked for.
  void SeeErrors() {
    for (bool more = true; more;) {
      try {
        rig.eng().WaitAll();
        more = false;
      } catch (const OpError&) {
      }
    }
  }

  Rig rig;
  CommunicatorId id;
  std::deque<Communicator> comms;
};

inline void ExpectHas(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
}

}  // namespace engine::test
