// Communicators on the CUDA devices that there are, one rank each: on NCCL where the kit finds it, on the models of both in CI.
// (What every backend must do, with programs that need more ranks than a machine may have: tests/device/comm_test.cc.)
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <optional>

#include "engine/bulk.h"
#include "engine/comm.h"
#include "engine/engine.h"

namespace engine {
namespace {

using Floats = std::vector<float>;

void Must(DeviceStatus status) {
  if (!status.ok()) throw DeviceError(std::move(status));
}

class Communicators : public testing::Test {
 protected:
  static constexpr size_t kFloats = 1024;

  void SetUp() override {
    std::string why;
    const int count = std::min(CudaDeviceCount(&why), 4);
    if (count == 0) GTEST_SKIP() << why;
    EngineOptions options;
    options.workers = 1;
    for (int i = 0; i < count; ++i) options.devices.push_back(devices_.emplace_back(MakeCudaDevice(i)));
    options.drain_timeout = std::chrono::seconds(10);
    eng_.emplace(options);
    for (const auto& device : devices_) {
      Must(device->MakeCurrent());
      Must(device->CreateStream(0, &streams_.emplace_back()));
    }
    Join();
  }
  void TearDown() override {
    comms_.clear();
    eng_.reset();
    for (const Buffer& b : buffers_) Must(devices_[b.rank]->Free(b.data, streams_[b.rank]));
    for (size_t r = 0; r < streams_.size(); ++r) {
      Must(devices_[r]->Synchronize(streams_[r]));
      Must(devices_[r]->DestroyStream(streams_[r]));
    }
  }
  void Join() {
    comms_.clear();
    const CommunicatorId id = NewCommunicatorId(*devices_[0]);
    for (int r = 0; r < ranks(); ++r)
      comms_.emplace_back(
          *eng_,
          CommunicatorOptions{
              .name = "kit", .device = r, .rank = r, .size = ranks(), .id = id, .timeout = std::chrono::seconds(60)});
  }
  int ranks() const { return static_cast<int>(devices_.size()); }
  float sum_of_ranks() const { return static_cast<float>(ranks() * (ranks() + 1)) / 2; }

  // Floats of a rank, all of one value, and their Var.
  struct Buffer {
    size_t rank;
    float* data;
    size_t n;
    Var var;
  };
  Buffer New(int rank, float value, size_t n = kFloats) {
    const auto r = static_cast<size_t>(rank);
    void* memory = nullptr;
    const Floats values(n, value);
    Must(devices_[r]->Allocate(n * sizeof(float), streams_[r], &memory));
    Must(devices_[r]->CopyIn(memory, values.data(), n * sizeof(float), streams_[r]));
    Must(devices_[r]->Synchronize(streams_[r]));
    return buffers_.emplace_back(Buffer{r, static_cast<float*>(memory), n, eng_->NewVar()});
  }
  Floats Read(const Buffer& b) {
    eng_->Wait(b.var);
    Floats out(b.n);
    Must(devices_[b.rank]->CopyOut(out.data(), b.data, b.n * sizeof(float), streams_[b.rank]));
    Must(devices_[b.rank]->Synchronize(streams_[b.rank]));
    return out;
  }
  void Push(int rank, const Buffer& from, const Buffer& to, const Collective& call) {
    comms_[static_cast<size_t>(rank)].Push(*eng_, {.name = "call", .reads = from.var, .writes = to.var}, {call});
  }

  std::vector<std::shared_ptr<Device>> devices_;
  std::vector<Stream> streams_;
  std::optional<Engine> eng_;
  std::deque<Communicator> comms_;
  std::deque<Buffer> buffers_;
};

TEST_F(Communicators, EachCallGivesWhatItsNameSays) {
  const auto all = static_cast<size_t>(ranks());
  std::vector<Buffer> sums, copies, gathered, shares;
  for (int r = 0; r < ranks(); ++r) {
    const Buffer mine = New(r, static_cast<float>(r + 1)), whole = New(r, static_cast<float>(r + 1), kFloats * all);
    sums.push_back(New(r, 0));
    copies.push_back(New(r, 0));
    gathered.push_back(New(r, 0, kFloats * all));
    shares.push_back(New(r, 0));
    Push(r, mine, sums.back(), Collective::AllReduce(mine.data, sums.back().data, kFloats));
    Push(r, mine, copies.back(), Collective::Broadcast(mine.data, copies.back().data, kFloats, DataType::kFloat32, 0));
    Push(r, mine, gathered.back(), Collective::AllGather(mine.data, gathered.back().data, kFloats));
    Push(r, whole, shares.back(), Collective::ReduceScatter(whole.data, shares.back().data, kFloats));
  }
  for (size_t r = 0; r < all; ++r) {
    SCOPED_TRACE(r);
    EXPECT_EQ(Read(sums[r]), Floats(kFloats, sum_of_ranks()));
    EXPECT_EQ(Read(copies[r]), Floats(kFloats, 1));
    EXPECT_EQ(Read(shares[r]), Floats(kFloats, sum_of_ranks()));
    const Floats got = Read(gathered[r]);
    for (size_t peer = 0; peer < all; ++peer) EXPECT_EQ(got[peer * kFloats], static_cast<float>(peer + 1));
  }
}

TEST_F(Communicators, CallsOfOnePushAreOneGroup) {
  std::vector<Buffer> first, second;
  for (int r = 0; r < ranks(); ++r) {
    first.push_back(New(r, 1));
    second.push_back(New(r, 2));
    const auto i = static_cast<size_t>(r);
    comms_[i].Push(*eng_, {.name = "both", .updates = {first[i].var, second[i].var}},
                   {Collective::AllReduce(first[i].data, first[i].data, kFloats),
                    Collective::AllReduce(second[i].data, second[i].data, kFloats)});
  }
  for (size_t r = 0; r < first.size(); ++r) {
    EXPECT_EQ(Read(first[r]), Floats(kFloats, static_cast<float>(ranks())));
    EXPECT_EQ(Read(second[r]), Floats(kFloats, static_cast<float>(2 * ranks())));
    EXPECT_EQ(comms_[r].stats().collectives, 2u);
    EXPECT_EQ(comms_[r].stats().groups, 1u);
  }
}

TEST_F(Communicators, ABulkOfThemKeepsItsOrder) {
  constexpr int kCalls = 20;
  std::vector<Buffer> a, b;
  for (int r = 0; r < ranks(); ++r) {
    a.push_back(New(r, r == 0 ? 3 : 0));
    b.push_back(New(r, -1));
  }
  for (int r = 0; r < ranks(); ++r) {
    const Bulk bulk(*eng_);
    for (int i = 0; i < kCalls; ++i) {
      const Buffer &from = (i % 2 ? b : a)[static_cast<size_t>(r)], &to = (i % 2 ? a : b)[static_cast<size_t>(r)];
      Push(r, from, to, Collective::Broadcast(from.data, to.data, kFloats, DataType::kFloat32, 0));
    }
  }
  for (const Buffer& buffer : a) EXPECT_EQ(Read(buffer), Floats(kFloats, 3));
}

TEST_F(Communicators, TheyComeAndGo) {
  for (int i = 0; i < 3; ++i) {
    Join();
    std::vector<Buffer> sums;
    for (int r = 0; r < ranks(); ++r) {
      const Buffer mine = New(r, 1);
      sums.push_back(New(r, 0));
      Push(r, mine, sums.back(), Collective::AllReduce(mine.data, sums.back().data, kFloats));
    }
    for (const Buffer& sum : sums) EXPECT_EQ(Read(sum), Floats(kFloats, static_cast<float>(ranks())));
  }
}

TEST_F(Communicators, ARankThatNeverComesIsFoundByTheTimeout) {
  const Buffer mine = New(0, 1);
  Communicator lonely(*eng_, {.name = "lonely",
                              .device = 0,
                              .rank = 0,
                              .size = 2,
                              .id = NewCommunicatorId(*devices_[0]),
                              .timeout = std::chrono::seconds(1)});
  lonely.Push(*eng_, {.name = "alone", .updates = mine.var}, {Collective::AllReduce(mine.data, mine.data, kFloats)});
  EXPECT_THROW(eng_->Wait(mine.var), OpError);
  // The device goes on.
  const Buffer from = New(0, 1), to = New(0, 0);
  if (ranks() > 1) return;
  Push(0, from, to, Collective::AllReduce(from.data, to.data, kFloats));
  EXPECT_EQ(Read(to), Floats(kFloats, 1));
}

TEST_F(Communicators, RanksSendAndReceive) {
  if (ranks() < 2) GTEST_SKIP() << "needs two devices";
  std::vector<Buffer> got;
  for (int r = 0; r < ranks(); ++r) {
    const Buffer mine = New(r, static_cast<float>(r));
    got.push_back(New(r, -1));
    comms_[static_cast<size_t>(r)].Push(
        *eng_, {.name = "ring", .reads = mine.var, .writes = got.back().var},
        {Collective::Send(mine.data, kFloats, DataType::kFloat32, (r + 1) % ranks()),
         Collective::Recv(got.back().data, kFloats, DataType::kFloat32, (r + ranks() - 1) % ranks())});
  }
  for (int r = 0; r < ranks(); ++r)
    EXPECT_EQ(Read(got[static_cast<size_t>(r)]), Floats(kFloats, static_cast<float>((r + ranks() - 1) % ranks())));
}

}  // namespace
}  // namespace engine
